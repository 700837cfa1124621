"""Mutants of the state that goes to newcomers beside a step, and what must hold of it (see `test_checks`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs
from mutants import Mutant, Patch, Play, Prompt, expect_noticed

from edl.core.data.ledger_versions import LedgerVersions
from edl.core.data.sample_ledger import Ledger
from edl.core.switch.generation_switch import GenerationSwitch
from edl.core.worker import agreement, worker_machine
from edl.core.worker.model_state import ModelState
from edl.core.worker.worker_inputs import Command, FetchState, RecordRing, SendState, StateCopied
from edl.core.worker.worker_machine import WorkerMachine
from edl.protocol.assignment import Assignment
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Phase
from edl.protocol.record import JobState, Record
from tests.model import Moment, Planned, SimFault, SimJob
from tests.model.model_daemons import SimDaemons
from tests.model.model_rings import STEP_TIMEOUT_S
from tests.model.model_trainers import SimShells
from tests.model.model_worker import SimWorker

SEEDS = 40
DATA = DataSpec(total=900, epochs=1, batch=2)


def gives_newcomers_samples_at_once(patch: Patch) -> None:
    def planned(self, roster, after_step, ahead, read=None, **_):
        return right(self, roster, after_step, ahead, read)

    right = LedgerVersions.planned
    patch.setattr(LedgerVersions, "planned", planned)
    patch.setattr(Ledger, "spares", lambda _self, _workers: True)


def takes_what_is_under_way_for_a_state(patch: Patch) -> None:
    def handle(self, happened):
        commands = right(self, happened)
        model = self.model
        model._tainted = model._tainted and not any(isinstance(one, FetchState) for one in commands)
        return commands

    right = WorkerMachine.handle
    patch.setattr(WorkerMachine, "handle", handle)


def counts_a_newcomer_without_a_state(patch: Patch) -> None:
    def handle(self, happened):
        commands = right(self, happened)
        if self.model.is_awaited and any(isinstance(one, RecordRing) for one in commands):
            self.status = structs.replace(self.status, phase=Phase.TRAINING, generation=self.generation)
        return commands

    right = WorkerMachine.handle
    patch.setattr(WorkerMachine, "handle", handle)


def never_says_that_the_state_has_come(patch: Patch) -> None:
    def handle(self, happened):
        commands = right(self, happened)
        return [] if isinstance(happened, StateCopied) and self.assignment is None else commands

    right = WorkerMachine.handle
    patch.setattr(WorkerMachine, "handle", handle)


def forgets_whose_leases_it_reads(patch: Patch) -> None:
    def handle(self, happened):
        before = self.status.leases_of
        commands = right(self, happened)
        if self.model.is_awaited:
            self.status = structs.replace(self.status, leases_of=before)
        return commands

    right = WorkerMachine.handle
    patch.setattr(WorkerMachine, "handle", handle)


def asks_of_members_what_they_cannot(patch: Patch) -> None:
    def offer(self, roster, prepared):
        comes = prepared and self._working.ledgers.can_spare() and not set(roster) <= set(self._working.record.roster)
        return self._working.seen.offer(roster[0], prepared) if comes else 0

    patch.setattr(GenerationSwitch, "_offer", offer)


def begins_with_whatever_state_it_has(patch: Patch) -> None:
    patch.setattr(agreement, "doubts", lambda *_, **__: False)


def trains_on_without_a_state(patch: Patch) -> None:
    patch.setattr(ModelState, "_part", lambda *_: (None, True))


def counts_after_the_first_portion(patch: Patch) -> None:
    def take(self):
        awaited, self._tainted, self.is_awaited = self.is_awaited, False, False
        return awaited

    patch.setattr(ModelState, "receive", take)


def gives_newcomers_samples_in_the_second_step(patch: Patch) -> None:
    def planned(self, *of, spare=0, **more):
        return right(self, *of, spare=min(1, spare), **more)

    right = LedgerVersions.planned
    patch.setattr(LedgerVersions, "planned", planned)
    patch.setattr(Ledger, "spares", lambda _self, _workers: 1_000)


def asks_nothing_where_newcomers_lack_the_state(patch: Patch) -> None:
    patch.setattr(Assignment, "begins_as_planned", property(lambda plan: plan.prepared and bool(plan.after_step)))


def leaves_out_one_that_is_not_as_planned(patch: Patch) -> None:
    """It takes the state of the others for its own in a ring without newcomers."""

    def says(entering):
        planned = entering.assignment.begins_as_planned and not entering.assignment.newcomers
        return None if planned else right(entering)

    def begins(entering, heard):
        planned = entering.assignment.begins_as_planned and not entering.assignment.newcomers
        found = right_beginning(entering, heard)
        return replace(found, current=True) if planned else found

    right, right_beginning = agreement.says, agreement.begins
    patch.setattr(worker_machine, "says", says)
    patch.setattr(worker_machine, "begins", begins)


def lacks_a_state_where_none_has_one(patch: Patch) -> None:
    def handle(self, happened):
        model, before = self.model, self.model._tainted
        commands = right(self, happened)
        stands = any(isinstance(one, RecordRing) for one in commands)
        model._tainted = before if stands and not isinstance(happened, StateCopied) else model._tainted
        return commands

    right = WorkerMachine.handle
    patch.setattr(WorkerMachine, "handle", handle)


def growing(seed: int) -> SimJob:
    job = SimJob(DATA, seed=seed, workers=2, prepares=1.0, sends=1.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.4), Planned(SimFault.LEAVE, 0.8)])
    return job


def of_two_sorts(seed: int) -> SimJob:
    job = SimJob(DATA, seed=seed, workers=1, prepares=1.0, sends=0.6)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.4), Planned(SimFault.JOIN, 0.8)])
    return job


def cut(seed: int) -> SimJob:
    """What is under way does not come; then who has sent it leaves, or dies, or the newcomer does."""
    job = SimJob(DATA, seed=seed, workers=1 + seed % 2, prepares=1.0, sends=1.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.5)])
    job.plan([Planned(SimFault.CUT_STATE, Moment.SENDING, 1), Planned(SimFault.LEAVE, Moment.SENDING, 1)])
    job.plan([Planned((SimFault.KILL, SimFault.LEAVE, SimFault.JOIN)[seed % 3], Moment.SENDING, 2)])
    return job


def late(seed: int) -> SimJob:
    """Words come late, as leaders and daemons are deaf for a while; and a leaver dies in the step of the switch."""
    job = growing(seed)
    for at in (0.3, 0.6, 0.9):
        job.plan([Planned(SimFault.JOIN, at - 0.1), Planned(SimFault.DEAFEN, at), Planned(SimFault.CHANGE_LEADER, at)])
    job.plan([Planned(SimFault.KILL, Moment.LAST_STEP, 1)])
    return job


def late_for_survivors(seed: int) -> SimJob:
    """Words of switches to smaller rings come late."""
    job = SimJob(DATA, seed=seed, workers=4, prepares=1.0, sends=1.0)
    for at in (0.3, 0.6, 0.9):
        job.plan([Planned(SimFault.LEAVE, at - 0.1), Planned(SimFault.DEAFEN, at), Planned(SimFault.CHANGE_LEADER, at)])
    job.plan([Planned(SimFault.KILL, Moment.LAST_STEP, 1)])
    return job


def of_large_states(play: Play) -> Play:
    """It takes six steps and more to send one."""

    def large(seed: int) -> SimJob:
        job = play(seed)
        job.state_bytes = 10**8 if seed % 2 else 10**9
        return job

    return large


class QuickDaemons(SimDaemons):
    def stir(self, worker: SimWorker, *, calm: bool = False) -> None:
        self.job.after(0.0, self.report, worker)


class LosesItsSender(Prompt):
    """The only one that has the state is told to leave, as that is on its way in portions; and the third does not come.
    Reports are so quick that all of it is known, one after the other.
    """

    portions = 0
    daemons_class = QuickDaemons

    def run(self, *, within_s: float = 60.0) -> None:
        super().run(within_s=within_s)
        if self.durable.state is not JobState.FINISHED:
            self.checks.violated("I5", f"the state is lost, and no worker has died: {self.durable.reason}")

    def happens(self, moment: Moment, worker: SimWorker | None = None) -> None:
        if moment is Moment.SITTING and worker is not None and worker.machine.model.is_awaited:
            self.inflict(SimFault.LEAVE, self.workers["w0"])
        self.portions += moment is Moment.SENDING
        if moment is Moment.SENDING and self.portions == 3:
            self.inflict(SimFault.CUT_STATE, self.workers["w1"])
        super().happens(moment, worker)


class NoneTrains(Prompt):
    """Both first workers die before their first step: one while a newcomer waits for the state that it is to get from
    rank 0, the other one in the ring that it forms with the newcomer.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(DATA, seed=seed, workers=2, prepares=1.0, sends=1.0)
        self.plan([Planned(SimFault.JOIN, 0.01)])

    def happens(self, moment: Moment, worker: SimWorker | None = None) -> None:
        if moment is Moment.SITTING and worker is not None and worker.id != "w2":
            self.shells.occupy(worker, 0.6 if worker.generation == 1 else STEP_TIMEOUT_S)
        if moment is Moment.ENTERING and worker is self.workers.get("w2") and not self.struck[SimFault.KILL]:
            self.after(0.05, self.inflict, SimFault.KILL, self.workers["w1"])
        super().happens(moment, worker)

    def make_durable(self, record: Record) -> None:
        super().make_durable(record)
        if set(record.roster) == {"w0", "w2"} and self.struck[SimFault.KILL] == 1:
            self.inflict(SimFault.KILL, self.workers["w0"])


def leaves(seed: int) -> SimJob:
    job = LosesItsSender(DATA, seed=seed, workers=1, prepares=1.0, sends=1.0)
    job.state_bytes = 10**9
    job.plan([Planned(SimFault.JOIN, 0.05)])
    return job


MUTANTS: dict[Mutant, tuple[Play, set[str]]] = {
    gives_newcomers_samples_at_once: (growing, {"I5"}),
    takes_what_is_under_way_for_a_state: (cut, {"I5"}),
    counts_a_newcomer_without_a_state: (leaves, {"I5"}),
    lacks_a_state_where_none_has_one: (NoneTrains, {"I5"}),
    never_says_that_the_state_has_come: (growing, {"I5", "I9", "I12", "I14"}),
    forgets_whose_leases_it_reads: (cut, {"I5", "I6", "I7", "I14"}),
    asks_of_members_what_they_cannot: (of_two_sorts, {"I14"}),
    asks_nothing_where_newcomers_lack_the_state: (of_two_sorts, {"I5"}),
    leaves_out_one_that_is_not_as_planned: (late_for_survivors, {"I5"}),
    begins_with_whatever_state_it_has: (of_large_states(late), {"I5"}),
    trains_on_without_a_state: (growing, {"I5"}),
    counts_after_the_first_portion: (of_large_states(growing), {"I5"}),
    gives_newcomers_samples_in_the_second_step: (of_large_states(growing), {"I5"}),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_of_sending_state_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    play, expected = MUTANTS[mutant]
    expect_noticed(mutant, play, expected, SEEDS, monkeypatch)


class CountingShells(SimShells):
    """Counts how often a trainer was to send its state."""

    def __init__(self, job: SimJob) -> None:
        super().__init__(job)
        self.sent = 0

    def carry_out(self, worker: SimWorker, commands: list[Command]) -> None:
        self.sent += sum(isinstance(one, SendState) for one in commands)
        super().carry_out(worker, commands)


class Counted(SimJob):
    shells: CountingShells
    shells_class = CountingShells


@pytest.mark.parametrize("seed", range(5))
def test_newcomers_get_their_state_beside_a_step(seed: int) -> None:
    job = Counted(DATA, seed=seed, workers=2, prepares=1.0, sends=1.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.6)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert job.shells.sent >= 1, job.story("nothing was sent")


@pytest.mark.parametrize("seed", range(5))
def test_a_large_one_comes_beside_several(seed: int) -> None:
    job = of_large_states(lambda seed: Counted(DATA, seed=seed, workers=2, prepares=1.0, sends=1.0))(seed)
    assert isinstance(job, Counted)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.JOIN, 0.6)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert job.shells.sent >= 6, job.story("it was not sent in portions")


@pytest.mark.parametrize("large", [False, True], ids=["one portion", "many"])
@pytest.mark.parametrize("fault", [SimFault.CUT_STATE, SimFault.KILL, SimFault.VANISH])
@pytest.mark.parametrize("seed", range(5))
def test_a_state_that_does_not_come_costs_a_broadcast(fault: SimFault, seed: int, large: bool) -> None:
    job = SimJob(DATA, seed=seed, workers=2, prepares=1.0, sends=1.0)
    job.state_bytes = 10**8 if large else 0
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(fault, Moment.SENDING, 1 + 2 * large)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert job.struck[fault] == 1
