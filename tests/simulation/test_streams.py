"""Whole simulated jobs on streams: shards whose lengths only their readers find out, under planned faults."""

from __future__ import annotations

import os

import pytest

from tests.model import scenario
from tests.model.model_lives import lives

SEEDS = int(os.environ.get("EDL_SEEDS", "200"))
BLOCK = 50
BLOCKS = [
    pytest.param(first, marks=pytest.mark.soak) if first >= 2 * BLOCK else first for first in range(0, SEEDS, BLOCK)
]
# Of readers that hang before they have found anything, of shards that are all empty, of a ring that is given up where
# its members have trained all that was found, of readers that pass many empty shards, of what a member of a planned
# ring tells of parts that the ring before has not begun, of a checkpoint that a new leader publishes a second time, of
# a newcomer that was blamed for a ring with another that is unfit, of workers that were never told of shards to read
# (9_619_929, 9_640_908), of one that was held to hang in a step that was none yet, of first rings that failed each for
# another worker (9_614_094), of a newcomer that was blamed before another was known to have come late (9_619_593), and
# of one that was left out by a leader whose other verdict was never on record, and held to be unfit (9_790_340).
SMALL = (5, 20, 175, 214, 420, 647)
MENDED = (
    *SMALL,
    1_000_270,
    9_201_223,
    9_401_862,
    9_418_308,
    9_605_050,
    9_614_094,
    9_619_593,
    9_619_929,
    9_640_908,
    9_661_387,
    9_691_350,
    9_790_340,
    pytest.param(9_790_701, marks=pytest.mark.soak),  # a long one: half as long as all others
)


@pytest.mark.slow
@pytest.mark.parametrize("first", BLOCKS)
def test_no_invariant_breaks_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        scenario(seed, streams=True).run()


@pytest.mark.parametrize("seed", MENDED)
def test_what_was_found_stays_mended(seed: int) -> None:
    scenario(seed, streams=True).run()


@pytest.mark.slow
@pytest.mark.parametrize("first", BLOCKS)
def test_each_item_once_in_all_lives(first: int) -> None:
    for seed in range(first, min(first + BLOCK // 2, SEEDS)):
        for _ in lives(seed, streams=True):
            pass
