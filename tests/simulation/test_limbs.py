"""Whole simulated jobs whose workers are several processes, under faults that strike one of these alone."""

from __future__ import annotations

import os

import pytest

from tests.model import scenario

SEEDS = int(os.environ.get("EDL_SEEDS", "200"))
BLOCK = 25
BLOCKS = [pytest.param(first, marks=pytest.mark.soak) if first >= BLOCK else first for first in range(0, SEEDS, BLOCK)]
# A worker that heard of a mark in a collective told it after that collective, for which the others waited at the mark.
# A limb that asked for its next epoch before another seemed to ask for different data.
MENDED = (1010, 1597, 2415, 2634)


@pytest.mark.parametrize("first", BLOCKS)
def test_no_invariant_breaks_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        scenario(seed, limbs=True).run()


@pytest.mark.parametrize("seed", MENDED)
def test_what_was_found_stays_mended(seed: int) -> None:
    scenario(seed, limbs=True).run()
