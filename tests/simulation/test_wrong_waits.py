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
        if not waits._waited(record, seen):
            return []
        return [one for one in record.roster if seen.failed(one, record.generation)]

    patch.setattr(deadlines.Waits, "_late", late)


def lets_each_script_wait_for_what_it_likes(patch: Patch) -> None:
    patch.setattr(deadlines.Waits, "_astray", lambda _waits, _record, _seen: {})


def waits_for_more_words_once_all_have_told(patch: Patch) -> None:
    awaited = deadlines.Waits._awaited

    def later(waits, *given):
        for worker, what, bound_s in awaited(waits, *given):
            yield worker, what, bound_s or waits.deadlines.finding_s

    patch.setattr(deadlines.Waits, "_awaited", later)


def takes_the_gradients_for_the_wrong_collective(patch: Patch) -> None:
    def astray(waits, record, seen):
        if not waits._waited(record, seen):
            return {}
        voids = [(one, seen.void(one, record.generation)) for one in record.roster]
        awaited = {one: void.awaited for one, void in voids if void is not None}
        there = len(set(awaited.values())) > 1
        return {one: "instead of it" for one, what in awaited.items() if there and what == GRADIENTS}

    patch.setattr(deadlines.Waits, "_astray", astray)


class OneOddJob(SimJob):
    """One worker hangs, or waits for a collective of its own: that one is lost, and no other."""

    def run(self, *, within_s: float = 60.0) -> None:
        super().run(within_s=within_s)
        odd = {worker.id for worker in self.workers.values() if worker.stalled or worker.astray}
        lost = {gone.worker for gone in self.durable.gone}
        if lost != odd:
            self.checks.violated("lost", f"{sorted(lost)} are lost, and {sorted(odd)} should be")


STALL = (Planned(SimFault.STALL, Moment.STEPPING, 8),)
STRAY = (Planned(SimFault.STRAY, Moment.STEPPING, 8),)
WRONG: dict[Mutant, tuple[tuple[Planned, ...], set[str]]] = {
    hears_of_no_void_mini_batch_before_its_end: (STALL, {"I5", "I12"}),
    takes_those_who_have_given_up_for_the_ones_that_hang: (STALL, {"I12"}),
    lets_each_script_wait_for_what_it_likes: (STRAY, {"lost"}),
    waits_for_more_words_once_all_have_told: (STRAY, {"lost"}),
    takes_the_gradients_for_the_wrong_collective: (STRAY, {"I12"}),
}


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    faults, names = WRONG[mutant]

    def play(seed: int) -> OneOddJob:
        job = OneOddJob(DATA, seed=seed, workers=4)
        job.plan(list(faults))
        return job

    expect_noticed(mutant, play, names, SEEDS, monkeypatch)
