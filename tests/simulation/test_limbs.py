"""Whole simulated jobs whose workers are several processes, under faults that strike one of these alone."""

from __future__ import annotations

import os

import pytest

from tests.model import scenario

SEEDS = int(os.environ.get("EDL_SEEDS", "200"))
BLOCK = 25
BLOCKS = [pytest.param(first, marks=pytest.mark.soak) if first >= BLOCK else first for first in range(0, SEEDS, BLOCK)]
# A worker that heard of a mark in a collective told it after that collective, for which the others waited at the mark.
# A limb that asked for its next epoch before another seemed to ask for different data. A simulated daemon that was told
# again of a copy stored it where a limb was at the next one, and so no files were told. A ring broke for the others
# alone in its first step, which a newcomer had made: they went on without it, and made that step again. A worker was
# unfit for having said that its ring was given up. A new leader that had not heard from a leaver yet gave it a newcomer
# whose pipeline had read what the leaver had been leased; one that had not heard from a newcomer yet, which alone had a
# step, took the model to be lost. The last member that had the model was left out, as a ring with it alone had failed,
# and the one that was to be tried without it was gone by then. A new leader did not know that a first ring had failed,
# as the member that had said so was booting alone. A member of an older ring, called as a newcomer, said each time that
# it was not in the planned state. A ring of one that a leader had put off stood, and no other was planned. The last
# member that had the model hung after its ring had failed, on its way to a planned one, and was awaited for ever. A
# worker was lost that had sat in a ring which was given up, and had not said so: ends in that ring counted against
# others. Checks: a limb that leaves in a void mini-batch, a daemon that was being replaced, a step in which nothing was
# learnt, a daemon that was refused.
MENDED: tuple[int, ...] = (
    1010,
    1597,
    2415,
    2634,
    11000873,
    11003102,
    11005276,
    11013077,
    12002762,
    13004873,
    13002630,
    13009647,
)
MENDED += (15036319, 15036821, 15041929, 16030912, 16032551, 16053163, 17003048, 17004136, 15017681, 15019041)
MENDED += (16036812, 17002943, 18105720, 18105848)


@pytest.mark.parametrize("first", BLOCKS)
def test_no_invariant_breaks_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        scenario(seed, limbs=True).run()


@pytest.mark.parametrize("seed", MENDED)
def test_what_was_found_stays_mended(seed: int) -> None:
    scenario(seed, limbs=True).run()


@pytest.mark.parametrize("first", BLOCKS)
def test_no_invariant_breaks_where_workers_lose_different_processes(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        scenario(seed, remnants=True).run()
