"""Mutants (`test_checks`) of the rules by which a leader knows who hangs, in jobs whose rings have no time-out."""

from __future__ import annotations

import msgspec
import pytest
from mutants import Mutant, Patch, Play, expect_noticed

from edl.core.job import deadlines, observations
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import GRADIENTS
from tests.model import Moment, Planned, SimFault, SimJob
from tests.model.model_rings import STEP_S, STEP_TIMEOUT_S

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
    overdue = deadlines.Waits.overdue

    def later(waits, now):
        finding_s = waits.deadlines.finding_s
        return [one for one in overdue(waits, now) if one.bound_s or now >= one.until + finding_s]

    patch.setattr(deadlines.Waits, "overdue", later)


def takes_the_gradients_for_the_wrong_collective(patch: Patch) -> None:
    def astray(waits, record, seen):
        if not waits._waited(record, seen):
            return {}
        voids = [(one, seen.void(one, record.generation)) for one in record.roster]
        awaited = {one: void.awaited for one, void in voids if void is not None}
        there = len(set(awaited.values())) > 1
        return {one: "instead of it" for one, what in awaited.items() if there and what == GRADIENTS}

    patch.setattr(deadlines.Waits, "_astray", astray)


def awaits_newcomers_whose_state_is_not_there(patch: Patch) -> None:
    look = deadlines.Waits.look

    def all_of_them(waits, record, *given, **more):
        plan = record.plan and msgspec.structs.replace(record.plan, beside=0)
        look(waits, msgspec.structs.replace(record, plan=plan), *given, **more)

    patch.setattr(deadlines.Waits, "look", all_of_them)


def takes_the_wait_for_a_member_that_died_for_one_in_vain(patch: Patch) -> None:
    waits = observations.Observations.waits
    patch.setattr(observations.Observations, "waits", lambda seen, generation, **_: waits(seen, generation, whole=True))


class OneOddJob(SimJob):
    """One worker hangs, or waits for a collective of its own: that one is lost, and no other."""

    def run(self, *, within_s: float = 60.0) -> None:
        super().run(within_s=within_s)
        odd = {worker.id for worker in self.workers.values() if worker.stalled or worker.astray}
        lost = {gone.worker for gone in self.durable.gone}
        if lost != odd:
            self.checks.violated("lost", f"{sorted(lost)} are lost, and {sorted(odd)} should be")


def odd(*faults: Planned) -> Play:
    def play(seed: int) -> OneOddJob:
        job = OneOddJob(DATA, seed=seed, workers=4)
        job.plan(list(faults))
        return job

    return play


def hangs_at_a_switch(seed: int) -> SimJob:
    """The only worker that has the state does, and a newcomer waits for it."""
    job = SimJob(DATA, seed=seed, workers=1, prepares=1.0, sends=1.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.STALL, Moment.LAST_STEP)])
    return job


class BreaksAtMark(SimJob):
    """All but one are held at a mark, which that one has not heard of, as one of them dies and another one hangs. The
    last of them finds no ring broken, as it leaves for the next one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(DATA, seed=seed, workers=4)
        self.after(0.3, self._ask)

    def _ask(self) -> None:
        self.inflict(SimFault.DEAFEN, self.workers["w1"])
        self.requests.ask_batch(12)
        self._look()

    def _look(self) -> None:
        is_held = any(worker.is_held for worker in self.workers.values())
        self.after(*((STEP_TIMEOUT_S / 2, self._strike) if is_held else (STEP_S, self._look)))

    def _strike(self) -> None:
        self.inflict(SimFault.STALL, self.workers["w3"])
        self.inflict(SimFault.KILL, self.workers["w2"])


STALL = odd(Planned(SimFault.STALL, Moment.STEPPING, 8))
STRAY = odd(Planned(SimFault.STRAY, Moment.STEPPING, 8))
WRONG: dict[Mutant, tuple[Play, set[str]]] = {
    hears_of_no_void_mini_batch_before_its_end: (STALL, {"I5", "I12"}),
    takes_those_who_have_given_up_for_the_ones_that_hang: (STALL, {"I12"}),
    lets_each_script_wait_for_what_it_likes: (STRAY, {"lost"}),
    waits_for_more_words_once_all_have_told: (STRAY, {"lost"}),
    takes_the_gradients_for_the_wrong_collective: (STRAY, {"I12"}),
    awaits_newcomers_whose_state_is_not_there: (hangs_at_a_switch, {"I12"}),
    takes_the_wait_for_a_member_that_died_for_one_in_vain: (BreaksAtMark, {"I12"}),
}


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    play, names = WRONG[mutant]
    expect_noticed(mutant, play, names, SEEDS, monkeypatch)
