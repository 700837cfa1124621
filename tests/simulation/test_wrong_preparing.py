"""Mutants of the ring that is formed beside another, and what must hold of it (see `test_checks`)."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from mutants import Mutant, Patch, Play, Prompt, expect_noticed

from edl.core.job.leader_state import WorkingState
from edl.core.job.observations import Observations
from edl.core.switch import ring_forming
from edl.core.switch.ring_forming import RingForming, RollCalling
from edl.core.worker import worker_machine
from edl.core.worker.next_move import Enter, next_move
from edl.core.worker.next_ring import NextRing
from edl.core.worker.observed_trainer import ObservedTrainer
from edl.core.worker.worker_inputs import Command, EnterRing, ScriptEnded
from edl.core.worker.worker_machine import WorkerMachine
from edl.protocol.data_nouns import DataSpec
from edl.protocol.record import JobState, Record
from tests.model import Moment, Planned, SimFault, SimJob
from tests.model.model_next_rings import FORM_S
from tests.model.model_rings import STEP_S
from tests.model.model_trainers import SimShells
from tests.model.model_worker import SimWorker

SEEDS = 40
DATA = DataSpec(total=1200, epochs=1, batch=2)
LONG = DataSpec(total=2500, epochs=1, batch=2)


def announces_once_all_have_met(patch: Patch) -> None:
    patch.setattr(RingForming, "stands", lambda _self, _roll_call: True)


def announces_once_one_has_it(patch: Patch) -> None:
    def stands(self, roll_call):
        return any(self._working.seen.prepared(one, roll_call.generation) == "" for one in roll_call.roster)

    patch.setattr(RingForming, "stands", stands)


def takes_the_word_of_an_earlier_attempt(patch: Patch) -> None:
    def prepared(self, worker, _generation):
        last = self.observation(worker)
        return last.prepared[1] if last is not None and last.prepared[0] else None

    patch.setattr(Observations, "prepared", prepared)


def prepares_under_a_number_that_was_used(patch: Patch) -> None:
    change = WorkingState.change

    def again(self, **what):
        roll_call = what.get("roll_call")
        if roll_call is not None and roll_call.generation:
            used = max(self.record.generation + 1, roll_call.generation - 1)
            what |= {"roll_call": msgspec.structs.replace(roll_call, generation=used), "planned": used}
        change(self, **what)

    patch.setattr(WorkingState, "change", again)


def never_prepares_but_forms_in_line(patch: Patch) -> None:
    patch.setattr(RingForming, "can", lambda _self, _roster: False)


def forms_in_line_after_one_failure(patch: Patch) -> None:
    patch.setattr(ring_forming, "TRIES", 1)


def leaves_no_worker_out_for_it(patch: Patch) -> None:
    patch.setattr(ring_forming, "_to_blame", lambda _evidence: [])


def enters_what_is_prepared_as_if_it_were_not(patch: Patch) -> None:
    def move(where, orders):
        found = right(where, orders)
        return Enter(msgspec.structs.replace(found.assignment, prepared=False)) if isinstance(found, Enter) else found

    right = next_move
    patch.setattr(worker_machine, "next_move", move)


def plans_as_if_it_were_not_prepared(patch: Patch) -> None:
    patch.setattr(RollCalling, "prepared", lambda _self, _roster: 0)


def keeps_what_is_not_wanted(patch: Patch) -> None:
    release = NextRing.release

    def keeps(self):
        release(self)
        return []

    patch.setattr(NextRing, "release", keeps)


def keeps_it_beyond_the_end(patch: Patch) -> None:
    def ends(self, happened):
        if isinstance(happened, ScriptEnded):
            self.next_ring.generation = 0
        return right(self, happened)

    right = WorkerMachine.handle
    patch.setattr(WorkerMachine, "handle", ends)


def begins_again_what_has_failed(patch: Patch) -> None:
    def take(self, happened):
        self._newest = 0
        return right(self, happened)

    right = NextRing.take
    patch.setattr(NextRing, "take", take)


def tells_nothing_of_a_failure(patch: Patch) -> None:
    def take(self, happened):
        commands = right(self, happened)
        return commands if self.stands else []

    right = NextRing.take
    patch.setattr(NextRing, "take", take)


def never_hears_that_one_prepares_no_more(patch: Patch) -> None:
    def hears(self, status):
        right(self, msgspec.structs.replace(status, prepares=status.prepares or self.status.prepares))

    right = ObservedTrainer.hear
    patch.setattr(ObservedTrainer, "hear", hears)


def growing(seed: int) -> SimJob:
    job = SimJob(DATA, seed=seed, workers=2, prepares=1.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.4), Planned(SimFault.LEAVE, 0.8)])
    return job


def failing(seed: int) -> SimJob:
    """Newcomers die, and some can be part of no ring, while theirs forms; and others come after them."""
    job = SimJob(LONG, seed=seed, workers=3, prepares=1.0)
    faults = (SimFault.JOIN, SimFault.JOIN, SimFault.JOIN, SimFault.JOIN)
    job.plan([Planned(fault, 0.1 + 0.3 * at) for at, fault in enumerate(faults)])
    job.plan([Planned(SimFault.CUT_OFF, Moment.READY, 1), Planned(SimFault.KILL, Moment.PREPARING, 5)])
    return job


def leaves_later(seed: int) -> SimJob:
    """One of those who train can be part of no other ring, and then one is told to leave."""
    job = SimJob(LONG, seed=seed, workers=3, prepares=1.0)
    job.plan([Planned(SimFault.CUT_OFF, Moment.STEPPING, 10), Planned(SimFault.LEAVE, 0.4)])
    return job


def refusing(seed: int) -> SimJob:
    """Some can prepare no ring any more, once they have tried, and newcomers come all the time."""
    job = SimJob(LONG, seed=seed, workers=2, prepares=1.0)
    job.next_rings.refuse = 0.3
    job.plan([Planned(SimFault.JOIN, 0.1 + 0.5 * at) for at in range(6)])
    return job


def ends_meanwhile(seed: int) -> SimJob:
    """All is trained, or a worker is told to stop, while a ring is prepared."""
    job = SimJob(DataSpec(total=150, epochs=1, batch=2), seed=seed, workers=2, prepares=1.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.2), Planned(SimFault.JOIN, 0.3)])
    return job


def renewed(seed: int) -> SimJob:
    """A daemon dies when its trainer's next ring stands, and before the others' does."""
    job = SimJob(DATA, seed=seed, workers=3, prepares=1.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.RENEW_DAEMON, Moment.PREPARED, 1)])
    return job


MUTANTS: dict[Mutant, tuple[Play, set[str]]] = {
    announces_once_all_have_met: (growing, {"I14"}),
    announces_once_one_has_it: (growing, {"I14"}),
    takes_the_word_of_an_earlier_attempt: (growing, {"I14"}),
    prepares_under_a_number_that_was_used: (growing, {"I2", "I12", "I14"}),
    never_prepares_but_forms_in_line: (growing, {"I14"}),
    forms_in_line_after_one_failure: (leaves_later, {"I14"}),
    leaves_no_worker_out_for_it: (failing, {"I14"}),
    enters_what_is_prepared_as_if_it_were_not: (growing, {"I14"}),
    plans_as_if_it_were_not_prepared: (growing, {"I14"}),
    keeps_what_is_not_wanted: (failing, {"I14"}),
    keeps_it_beyond_the_end: (ends_meanwhile, {"I14"}),
    begins_again_what_has_failed: (failing, {"I14"}),
    tells_nothing_of_a_failure: (failing, {"I9"}),
    never_hears_that_one_prepares_no_more: (refusing, {"I14"}),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_of_preparing_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    play, expected = MUTANTS[mutant]
    expect_noticed(mutant, play, expected, SEEDS, monkeypatch)


class TimedShells(SimShells):
    """Remembers when steps were made, and how many entered a ring in line."""

    def __init__(self, job: SimJob) -> None:
        super().__init__(job)
        self.made: list[float] = []
        self.in_line = 0

    def stepped(self, worker: SimWorker, commands: list[Command]) -> None:
        self.made.append(self.job.now)
        super().stepped(worker, commands)

    def carry_out(self, worker: SimWorker, commands: list[Command]) -> None:
        self.in_line += any(isinstance(one, EnterRing) for one in commands)
        super().carry_out(worker, commands)


class Timed(Prompt):
    shells: TimedShells
    shells_class = TimedShells


@pytest.mark.parametrize("seed", range(10))
def test_who_trains_waits_for_no_ring_to_form(seed: int) -> None:
    """Rings take as long to form as several steps, and no two steps are further apart than usual ones."""
    job = Timed(LONG, seed=seed, workers=2, prepares=1.0)
    job.plan([Planned(SimFault.JOIN, 0.3), Planned(SimFault.JOIN, 0.9), Planned(SimFault.LEAVE, 1.5)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert len(job.next_rings.attempts) >= 3
    assert job.shells.in_line == 2, "but for the first ring of all"
    begun = next(at for at, now in enumerate(job.shells.made) if now > 0.2)
    longest = max(later - earlier for earlier, later in pairwise(job.shells.made[begun:]))
    assert longest < 2 * STEP_S < FORM_S, f"{longest:.3f} s without a step"


@pytest.mark.parametrize("seed", range(10))
def test_who_trains_with_one_that_prepares_no_more_takes_newcomers_in_all_the_same(seed: int) -> None:
    """The first time costs the newcomer a try beside training; then their ring is formed in line."""
    job = Timed(LONG, seed=seed, workers=2, prepares=1.0)
    job.next_rings.refuse = 1.0
    job.plan([Planned(SimFault.JOIN, 0.3)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert len(job.next_rings.attempts) == 1
    assert len(job.durable.roster) == 3


@pytest.mark.parametrize("fault", [SimFault.KILL, SimFault.VANISH, SimFault.CUT_OFF])
@pytest.mark.parametrize("seed", range(5))
def test_a_newcomer_that_fails_while_its_ring_forms_costs_the_others_no_step(fault: SimFault, seed: int) -> None:
    job = Timed(LONG, seed=seed, workers=2, prepares=1.0)
    job.plan([Planned(SimFault.JOIN, 0.3)])
    newcomer = Newcomer(job, fault)
    job.run()
    assert newcomer.struck
    begun = next(at for at, now in enumerate(job.shells.made) if now > 0.2)
    longest = max(later - earlier for earlier, later in pairwise(job.shells.made[begun:]))
    assert longest < 2 * STEP_S, job.story(f"{longest:.3f} s without a step")
    assert not job.checks.writing.count("batch_voided")


class HearsLate(Timed):
    """The word of the first planned switch reaches none of its members before its step."""

    late_words = 1

    def make_durable(self, record: Record) -> None:
        if record.generation and record.plan is not None and self.late_words:
            self.late_words -= 1
            for one in self.workers.values():
                self.inflict(SimFault.DEAFEN, one)
        super().make_durable(record)


@pytest.mark.parametrize("change", [SimFault.JOIN, SimFault.LEAVE])
@pytest.mark.parametrize("sends", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_word_that_comes_too_late_for_all_costs_no_step(seed: int, sends: float, change: SimFault) -> None:
    """All stay in the ring that works, and the same switch is planned anew, with more time for its word. None of them
    is beyond a step that rests on a mark, as they wait there.
    """
    workers = 2 if change is SimFault.JOIN else 4
    job = HearsLate(LONG, seed=seed, workers=workers, prepares=1.0, sends=sends)
    job.plan([Planned(change, 0.3)])
    job.run()
    count = job.checks.writing.count
    assert not job.late_words, job.story("no word was late")
    assert count("switch_put_off") == (not job.durable.sizing.rebatches), job.story("it was not put off")
    assert not count("batch_voided"), job.story("a mini-batch was void")
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert len(job.durable.roster) == 3


class Newcomer:
    """The third worker, which something happens to as it prepares its first ring."""

    def __init__(self, job: SimJob, fault: SimFault) -> None:
        self.struck = False
        self._job, self._fault = job, fault
        self._prepare, job.next_rings.prepare = job.next_rings.prepare, self._strike  # type: ignore[method-assign]

    def _strike(self, worker: SimWorker, place: object) -> None:
        if worker.id == "w2" and not self.struck:
            self.struck = True
            self._job.inflict(self._fault, worker)
        if worker.alive:
            self._prepare(worker, place)  # type: ignore[arg-type]
