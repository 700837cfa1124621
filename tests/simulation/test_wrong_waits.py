"""Mutants (`test_checks`) of the rules by which a leader knows who hangs, in jobs whose rings have no time-out."""

from __future__ import annotations

import pytest
from mutants import Mutant, Patch, expect_noticed

from edl.core.job import deadlines, observations
from edl.protocol.data import DataSpec
from edl.protocol.messages import GRADIENTS
from edl.testing import Moment, Planned, SimFault, SimJob

SEEDS = 60
DATA = DataSpec(total=1200, epochs=1, batch=2)


def hears_of_no_void_mini_batch_before_its_end(patch: Patch) -> None:
    patch.setattr(observations.Observations, "failed", observations.Observations.breaks)


def takes_those_who_have_given_up_for_the_ones_that_hang(patch: Patch) -> None:
    def late(waits, record, seen):
        if not waits._has_waited(record, seen):
            return []
        return [one for one in record.roster if seen.failed(one, record.generation)]

    patch.setattr(deadlines.Waits, "_late", late)


def lets_each_script_wait_for_what_it_likes(patch: Patch) -> None:
    patch.setattr(deadlines.Waits, "_astray", lambda _waits, _record, _seen: {})


def takes_the_gradients_for_the_wrong_collective(patch: Patch) -> None:
    def astray(waits, record, seen):
        if not waits._has_waited(record, seen):
            return {}
        voids = [(one, seen.void(one, record.generation)) for one in record.roster]
        awaited = {one: void.awaited for one, void in voids if void is not None}
        there = len(set(awaited.values())) > 1
        return {one: "instead of it" for one, what in awaited.items() if there and what == GRADIENTS}

    patch.setattr(deadlines.Waits, "_astray", astray)


STALL = (Planned(SimFault.STALL, Moment.STEPPING, 8),)
STRAY = (Planned(SimFault.STRAY, Moment.STEPPING, 8),)
WRONG: dict[Mutant, tuple[Planned, ...]] = {
    hears_of_no_void_mini_batch_before_its_end: STALL,
    takes_those_who_have_given_up_for_the_ones_that_hang: STALL,
    lets_each_script_wait_for_what_it_likes: STRAY,
    takes_the_gradients_for_the_wrong_collective: STRAY,
}


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    def play(seed: int) -> SimJob:
        job = SimJob(DATA, seed=seed, workers=4)
        job.plan(list(WRONG[mutant]))
        return job

    expect_noticed(mutant, play, {"I12"}, SEEDS, monkeypatch)
