"""Requests for another size, decided by the leader's machine: ACK, RETRY or never, and each of them once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_job import meet

from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Acknowledge, Refuse, Reported, Tell, TookOver, Vanished
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.job.orders import OrderBook
from edl.core.resize import scale_requests
from edl.protocol.assignment import Verdict
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import (
    AskScale,
    AskScaleIn,
    AskScaleOut,
    AskStop,
    Observation,
    Phase,
    Register,
    Scaling,
)
from edl.protocol.record import Identity, Record, WorkerState
from examples import examples

SPEC = DataSpec(total=100_000, epochs=1, batch=10)


class Job:
    """A leader's machine, and workers that do what is said of them."""

    def __init__(self, np: int = 2, minimum: int = 1, maximum: int = 4) -> None:
        self.machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0))
        self.size = np, minimum, maximum
        self.now = 0.0
        self.told: list[Tell] = []

    @property
    def record(self) -> Record:
        return self.machine.record

    def feed(self, happened: object, after_s: float = 0.01) -> list[object]:
        self.now += after_s
        commands = [*self.machine.handle(happened, self.now), *meet(self.machine, self.now)]  # type: ignore[arg-type]
        self.told += [command for command in commands if isinstance(command, Tell)]
        return list(commands)

    def join(self, *workers: str, answering: bool = False) -> None:
        for worker in workers:
            self.feed(Register(Identity(worker, "host", "127.0.0.1", 1, 2), *self.size, answering))

    def see(self, worker: str, phase: Phase, generation: int, step: int = 0, after_s: float = 0.01, **more) -> None:
        usual: dict[str, Any] = {"leases_of": generation, "data": SPEC, "pause": None, "leaving": False, "reason": ""}
        seen = Observation(phase=phase, generation=generation, step=step, step_time_s=0.01, **usual | more)
        self.feed(Reported(worker, seen), after_s)

    def switch(self) -> None:
        """All of the plan enter; those who were told to leave go."""
        plan = self.record.plan
        assert plan is not None
        step = self.machine.newest_step if plan.after_step is None else plan.after_step
        for worker in plan.roster:
            self.see(worker, Phase.TRAINING, plan.generation, step)
        for member in self.record.members:
            if member.state is WorkerState.LEAVING:
                self.see(member.identity.id, Phase.DONE, plan.generation - 1, step)

    def tell_how_far_pipelines_have_read(self) -> None:
        """A planned switch waits for that, where its newcomers would have no samples else."""
        record, step = self.record, self.machine.newest_step
        if record.sizing.rebatch is not None and record.plan is None:
            for worker in record.roster:
                mark = (record.sizing.rebatch.number, record.sizing.rebatch.mark)
                self.see(worker, Phase.TRAINING, record.generation, step, marked=mark)

    def answer(self, asked: Scaling) -> Acknowledge | Refuse:
        (answer,) = [c for c in self.feed(asked) if isinstance(c, Acknowledge | Refuse)]
        return answer

    def state(self, worker: str) -> WorkerState | None:
        states = {member.identity.id: member.state for member in self.record.members}
        return states.get(worker)

    def details(self, kind: str) -> dict:
        return next(tell.fact.details() for tell in reversed(self.told) if tell.fact.kind.value == kind)


def running(np: int = 2, minimum: int = 1, maximum: int = 4) -> Job:
    job = Job(np, minimum, maximum)
    job.join(*[f"w{i}" for i in range(np)])
    job.switch()
    return job


# ------------------------------------------------------------------------------------------- relative requests: ACK


def test_scale_out_moves_the_target_by_what_it_says() -> None:
    job = running()
    assert job.answer(AskScaleOut(2, "a")) == Acknowledge(4)
    assert job.record.target == 4
    assert job.details("scale_asked") == {"size": 4, "before": 2, "leavers": ()}


def test_scale_in_lets_the_latest_comers_go() -> None:
    job = running(3)
    assert job.answer(AskScaleIn(2, "a")) == Acknowledge(1)
    assert (job.state("w1"), job.state("w2")) == (WorkerState.LEAVING, WorkerState.LEAVING)
    job.switch()
    assert (job.record.roster, job.record.target) == (("w0",), 1)


def test_scale_in_of_named_workers_lets_just_these_go() -> None:
    job = running(3)
    assert job.answer(AskScaleIn(("w0", "w1", "w0"), "a")) == Acknowledge(1)
    job.switch()
    assert (job.record.roster, job.record.target) == (("w2",), 1)


def test_a_repeated_request_is_answered_again_and_nothing_follows() -> None:
    job = running()
    assert job.answer(AskScaleOut(1, "a")) == Acknowledge(3)
    record = job.record
    assert job.answer(AskScaleOut(1, "a")) == Acknowledge(3)
    assert job.record == record


def test_a_repeated_request_is_known_to_the_next_leader_and_after_the_scaling() -> None:
    job = running(3)
    job.answer(AskScaleIn(("w1",), "a"))
    job.switch()
    raw = msgspec.json.encode(job.record)
    job.machine = JobMachine(msgspec.json.decode(raw, type=Record), LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w2"})))
    assert job.answer(AskScaleIn(("w1",), "a")) == Acknowledge(2)
    assert job.record.roster == ("w0", "w2")
    assert job.record.plan is None


def test_a_late_repetition_does_not_undo_a_newer_request() -> None:
    job = running()
    job.feed(AskScale(4, "a"))
    job.feed(AskScale(3, "b"))
    assert job.answer(AskScale(4, "a")) == Acknowledge(4)
    assert job.record.target == 3


def test_only_the_newest_requests_are_remembered() -> None:
    job = running()
    for number in range(scale_requests.KEPT + 5):
        job.feed(AskScale(2 + number % 2, f"r{number}"))
    assert [taken.request for taken in job.record.sizing.taken] == [f"r{5 + i}" for i in range(scale_requests.KEPT)]


@pytest.mark.parametrize("size", [3, 4])
def test_a_size_asked_for_after_a_death_asks_for_a_worker_in_the_place_of_the_dead_too(size: int) -> None:
    job = running(3)
    before = job.record.tally.asked_more
    job.answer(AskScale(3))
    assert job.record.tally.asked_more == before, "none is missing"
    job.feed(Vanished("w2", "killed"))
    for _ in range(2):
        assert job.answer(AskScale(size)) == Acknowledge(size)
        assert job.record.tally.asked_more == before + size - 2, "what was asked for is on its way"
    assert job.details("scale_asked") == {"size": size, "before": 2, "leavers": ()}


# ----------------------------------------------------------------------------------------- relative requests: RETRY


def test_workers_of_the_first_size_that_come_after_a_smaller_one_was_asked_for_are_not_wanted() -> None:
    job = Job(np=3, maximum=0)
    job.join("w0")
    job.see("w0", Phase.BOOTING, 0)
    assert job.answer(AskScale(1, "a")) == Acknowledge(1)
    job.join("w1")
    assert job.record.members[1].state is WorkerState.LEAVING
    job.switch()
    job.join("w2")
    assert (job.record.target, job.record.roster) == (1, ("w0",))
    assert job.record.members[-1].state is WorkerState.LEAVING
    job.join("w3")
    assert job.record.target == 2, "a fourth was started by hand"


def test_a_relative_request_waits_until_the_one_before_is_met() -> None:
    """From the ACK to the end of the last switch: RETRY, with what is under way, and nothing changes."""
    job = running()
    job.answer(AskScaleOut(1, "a"))
    reasons = []

    def retried(asked: Scaling) -> None:
        record = job.record
        answer = job.answer(asked)
        assert isinstance(answer, Refuse)
        assert answer.retry
        reasons.append(answer.reason)
        assert job.record == record

    retried(AskScaleOut(1, "b"))
    job.join("w2", answering=True)
    retried(AskScaleIn(1, "b"))
    job.see("w2", Phase.READY, 0)
    retried(AskScaleIn(("w0",), "b"))
    job.switch()
    assert job.answer(AskScaleOut(1, "b")) == Acknowledge(4)
    assert [reason.split(";")[0] for reason in reasons] == [
        "2 of the 3 workers asked for are here",
        "still joining: w2",
        "a switch from 2 to 3 workers is under way",
    ]


def test_a_job_that_starts_takes_no_relative_request_yet() -> None:
    job = Job()
    job.join("w0")
    assert job.answer(AskScaleOut(1)) == Refuse("the job is starting: 1 of 2 workers are here", retry=True)


def test_leavers_are_waited_for() -> None:
    job = running(3)
    job.answer(AskScaleIn(1, "a"))
    plan = job.record.plan
    assert plan is not None
    for worker in plan.roster:
        job.see(worker, Phase.TRAINING, plan.generation, plan.after_step or 0)
    assert job.answer(AskScaleOut(1, "b")) == Refuse("still leaving: w2", retry=True)


def test_workers_that_never_come_are_taken_back_by_a_request_for_a_size() -> None:
    job = running()
    job.answer(AskScaleOut(2, "a"))
    answer = job.answer(AskScaleIn(1, "b"))
    assert isinstance(answer, Refuse)
    assert "`edl scale j 2` takes that back" in answer.reason
    assert job.answer(AskScale(2)) == Acknowledge(2)
    assert job.answer(AskScaleIn(1, "b")) == Acknowledge(1)


def test_a_lost_worker_is_not_waited_for() -> None:
    job = running(3)
    job.feed(Vanished("w2", "gone"))
    job.switch()
    assert (job.record.roster, job.record.target) == (("w0", "w1"), 3)
    assert job.answer(AskScaleOut(1, "a")) == Acknowledge(4)


# ------------------------------------------------------------------------------------------------------------ never


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (AskScale(9), "the job may have at most 4 workers, so not 9: ask for 2 to 4 (--min-np and --max-np"),
        (AskScaleOut(2), "the job may have at most 4 workers, so not 5: ask for 2 to 4"),
        (AskScaleIn(2), "the job needs at least 2 workers, so not 1: ask for 2 to 4"),
        (AskScaleIn(("w1", "w2")), "the job needs at least 2 workers, so not 1"),
        (AskScaleIn(("w9",)), "no worker w9 trains in this job: `edl status j` lists them"),
    ],
)
def test_what_can_never_be_met_is_refused_for_good(asked: Scaling, reason: str) -> None:
    job = running(3, minimum=2)
    answer = job.answer(asked)
    assert isinstance(answer, Refuse)
    assert not answer.retry
    assert answer.reason.startswith(reason)
    assert (job.record.target, job.record.plan) == (3, None)


def test_without_a_maximum_the_remedy_names_none() -> None:
    answer = running(3, minimum=2, maximum=0).answer(AskScale(1))
    assert isinstance(answer, Refuse)
    assert answer.reason.endswith("ask for 2 or more (--min-np sets it when a job starts)")


def test_named_leavers_must_leave_enough_who_are_there() -> None:
    job = running(3)
    job.feed(Vanished("w2", "gone"))
    job.switch()
    answer = job.answer(AskScaleIn(("w0", "w1")))
    assert answer == Refuse("only 0 workers would be left, and the job needs 1: name fewer")


def test_a_job_that_is_over_takes_nothing_but_answers_what_it_had_taken() -> None:
    job = running()
    job.answer(AskScaleOut(1, "a"))
    job.feed(AskStop("enough"))
    assert job.answer(AskScaleOut(1, "b")) == Refuse("the job is over: enough")
    assert job.answer(AskScaleOut(1, "a")) == Acknowledge(3)


# ----------------------------------------------------------------------------- the target follows who comes and goes


def test_a_newcomer_that_comes_unasked_is_welcome_and_counts() -> None:
    job = running()
    job.join("w2")
    assert job.record.target == 3
    job.see("w2", Phase.READY, 0)
    job.switch()
    assert job.answer(AskScaleOut(1, "a")) == Acknowledge(4)


def test_a_worker_told_to_leave_by_a_signal_does_not_count_any_more() -> None:
    job = running(3)
    job.see("w1", Phase.TRAINING, 1, leaving=True)
    assert job.record.target == 2
    job.switch()
    assert job.answer(AskScaleIn(1, "a")) == Acknowledge(1)
    assert job.state("w2") is WorkerState.LEAVING


def test_a_worker_started_for_a_request_that_was_taken_back_leaves_again() -> None:
    job = running()
    job.feed(AskScale(4))
    job.feed(AskScale(2))
    job.join("w2", answering=True)
    assert job.state("w2") is WorkerState.LEAVING
    assert OrderBook(job.record, 1).orders("w2").verdict is Verdict.LEAVE


def test_a_smaller_size_asked_for_while_the_first_ring_forms_is_not_lost() -> None:
    job = Job(np=3)
    job.join("w0", "w1", "w2")
    assert job.answer(AskScale(1)) == Acknowledge(1)
    assert OrderBook(job.record, 1).orders("w2").verdict is Verdict.STAY
    job.switch()
    job.switch()
    assert job.record.roster == ("w0",)


def test_a_smaller_size_asked_for_before_the_first_ring_is_planned() -> None:
    job = Job(np=3)
    job.join("w0", "w1")
    job.feed(AskScale(1))
    job.switch()
    assert (job.record.roster, job.record.target) == (("w0",), 1)


# ---------------------------------------------------------------------------------- all of it, against a naive twin


class Account:
    """The twin: what the target must be, from nothing but the answers."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.target = job.record.target
        self.asked: list[Scaling] = []
        self.taken: dict[str, int] = {}

    def ask(self, asked: Scaling) -> None:
        known, before = self.taken.get(asked.request), self.job.record
        answer = self.job.answer(asked)
        if known is not None:
            assert answer == Acknowledge(known)
            assert self.job.record == before
        elif isinstance(answer, Acknowledge):
            self.target = self.taken[asked.request] = self._after(asked)
            assert answer == Acknowledge(self.target)
        else:
            assert self.job.record == before

    def _after(self, asked: Scaling) -> int:
        match asked:
            case AskScale(size):
                return size
            case AskScaleOut(workers):
                return self.target + workers
            case AskScaleIn(workers):
                return self.target - (workers if isinstance(workers, int) else len(set(workers)))

    def change_leader(self) -> None:
        alive = frozenset(member.identity.id for member in self.job.record.members)
        raw = msgspec.json.encode(self.job.record)
        self.job.machine = JobMachine(msgspec.json.decode(raw, type=Record), LeadTimes.of(10.0))
        self.job.feed(TookOver(alive))
        for member in self.job.record.members:  # they report to the new one
            if member.identity.id in self.job.record.roster:
                self.job.see(member.identity.id, Phase.TRAINING, self.job.record.generation, 1)

    def start_one(self) -> None:
        """As a launcher does, late."""
        self.job.join(f"n{self.job.record.arrivals}", answering=True)

    def settle_some(self) -> None:
        """Who boots is ready, who was told to leave before it trained goes, and what is planned happens."""
        for member in self.job.record.members:
            if member.state is WorkerState.JOINING:
                self.job.see(member.identity.id, Phase.READY, 0)
            elif member.state is WorkerState.LEAVING and member.identity.id not in self.job.record.roster:
                self.job.see(member.identity.id, Phase.DONE, 0)
        self.job.tell_how_far_pipelines_have_read()
        if self.job.record.plan is not None:
            self.job.switch()


NAMES = st.lists(st.sampled_from(["w0", "w1", "n2", "n3", "n4"]), min_size=1, max_size=2).map(tuple)
WISHES = st.one_of(
    st.integers(1, 5).map(lambda n: ("size", n)),
    st.integers(1, 3).map(lambda n: ("out", n)),
    st.one_of(st.integers(1, 3), NAMES).map(lambda who: ("in", who)),
    st.integers(0, 20).map(lambda n: ("again", n)),
    st.sampled_from([("leader", 0), ("start", 0), ("settle", 0)]),
)
KINDS: dict[str, Any] = {"size": AskScale, "out": AskScaleOut, "in": AskScaleIn}


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(WISHES, max_size=40))
def test_whatever_is_asked_and_repeated_the_target_is_the_account_and_the_size_follows(story) -> None:
    job = running()
    account = Account(job)
    for what, how in story:
        match what:
            case "leader":
                account.change_leader()
            case "start":
                account.start_one()
            case "settle":
                account.settle_some()
            case "again" if account.asked:
                account.ask(account.asked[how % len(account.asked)])
            case "size" | "out" | "in":
                account.asked.append(KINDS[what](how, f"r{len(account.asked)}"))
                account.ask(account.asked[-1])
        assert job.record.target == account.target
    for _ in range(10):
        while len(scale_requests.staying(job.record)) < account.target:
            account.start_one()
        account.settle_some()
    assert (len(job.record.roster), job.record.target) == (account.target, account.target), job.record


# --------------------------------------------------------------------------------------------------- how long it took


def test_each_phase_of_a_scaling_tells_its_time() -> None:
    job = running()
    job.feed(AskScaleOut(1, "a"))
    job.join("w2", answering=True)
    job.see("w2", Phase.REHEARSING, 0, after_s=3.0)
    job.see("w2", Phase.READY, 0, after_s=0.5)
    job.switch()
    assert job.details("worker_warming") == {"worker": "w2", "joining_ms": 3000}
    assert job.details("worker_ready") == {"worker": "w2", "joining_ms": 3000, "warming_ms": 500}
    scaled = job.details("scaled")
    assert (scaled["from"], scaled["to"], scaled["switching_ms"], scaled["asked_ms"]) == (2, 3, 30, 3540)
    job.answer(AskScaleIn(("w2",), "b"))
    job.switch()
    assert job.details("worker_left") == {"worker": "w2", "leaving_ms": 30, "why": "a request named it"}


def test_what_began_under_another_leader_has_no_length() -> None:
    job = running()
    job.feed(AskScaleOut(1, "a"))
    job.join("w2", answering=True)
    job.see("w2", Phase.READY, 0)
    job.machine = JobMachine(job.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1", "w2"})))
    job.switch()
    scaled = job.details("scaled")
    assert (scaled["switching_ms"], scaled["asked_ms"]) == (None, None)
