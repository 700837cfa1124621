"""A worker that hangs is lost after its bound, with a reason; one that only takes long is not (I12)."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from machine_job import meet

from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Reported, Tell, TimePassed, Vanished
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.job.orders import OrderBook
from edl.facts import WorkerLost
from edl.protocol.assignment import Verdict
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import AskBatch, Observation, Phase, Register
from edl.protocol.record import Identity, WorkerState

SPEC = DataSpec(total=100_000, epochs=1, batch=10)
DEADLINES = Deadlines(boot_s=100.0, seat_s=20.0, step_s=10.0, moments_s=2.5, finding_s=2.5)


class Job:
    """A leader's machine with workers that train."""

    def __init__(self, spec: DataSpec = SPEC, workers: int = 2) -> None:
        self.spec = spec
        self.machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0), DEADLINES)
        self.lost: dict[str, str] = {}
        self.workers = [f"w{number}" for number in range(workers)]
        for worker in self.workers:
            self.join(worker, 0.0)
        for worker in self.workers:
            self.see(worker, Phase.TRAINING, 1, 0, 0.0)

    def feed(self, happened: object, at: float) -> None:
        for command in [*self.machine.handle(happened, at), *meet(self.machine, at)]:  # type: ignore[arg-type]
            if isinstance(command, Tell) and isinstance(command.fact, WorkerLost):
                self.lost[command.fact.worker] = command.fact.reason

    def wait(self, since: float, until: float) -> None:
        """A leader at work takes an input each second."""
        for at in range(int(since) + 1, int(until) + 1):
            self.feed(TimePassed(), float(at))

    def join(self, worker: str, at: float) -> None:
        self.feed(Register(Identity(worker, "host", "127.0.0.1", 1, 2), len(self.workers), 1, 0), at)

    def see(
        self,
        worker: str,
        phase: Phase,
        generation: int,
        step: int,
        at: float,
        *,
        marked: tuple[int, int] = (0, 0),
        heard_at: float | None = None,
        **more: object,
    ) -> None:
        blank = Observation(
            phase=phase, generation=generation, step=step, leases_of=generation, step_time_s=0.01, data=self.spec
        )
        observation = msgspec.structs.replace(blank, marked=marked, at=at, **more)
        self.feed(Reported(worker, observation), at if heard_at is None else heard_at)

    def state(self, worker: str) -> WorkerState | None:
        states = {member.identity.id: member.state for member in self.machine.record.members}
        return states.get(worker)


@pytest.mark.parametrize(("step_timeout_s", "boot_s"), [(1, 300), (60, 600), (600, 6000)])
def test_a_boot_may_take_ten_of_the_longest_steps_and_five_minutes_at_least(step_timeout_s: int, boot_s: int) -> None:
    deadlines = Deadlines.of(step_timeout_s)
    assert (deadlines.boot_s, deadlines.seat_s, deadlines.step_s) == (boot_s, 2 * step_timeout_s, step_timeout_s)


def test_a_newcomer_that_never_boots_is_dropped_and_hears_why() -> None:
    job = Job()
    job.join("w2", 1.0)
    job.wait(1, 100)
    assert job.lost == {}
    job.wait(100, 103)
    assert "joining for 100 s: it hangs" in job.lost["w2"]
    assert job.machine.record.plan is None  # no member waited for it
    orders = OrderBook(job.machine.record, 1).orders("w2")
    assert orders.verdict is Verdict.STOP
    assert orders.reason == f"the job's leader has given this worker up: {job.lost['w2']}"


def test_a_newcomer_that_goes_on_gets_the_time_anew() -> None:
    job = Job()
    job.join("w2", 1.0)
    job.wait(1, 90)
    job.see("w2", Phase.REHEARSING, 0, 0, 90.0)
    job.wait(90, 150)
    assert job.state("w2") is WorkerState.WARMING
    job.wait(150, 189)
    job.see("w2", Phase.READY, 0, 0, 189.0)
    job.wait(189, 900)
    assert job.lost == {}


def test_a_newcomer_that_may_be_needed_for_the_first_ring_waits_for_that_and_does_not_hang() -> None:
    """It is to boot once a worker has sat in a ring. The first one may come to nothing a few times before."""
    machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0), dataclasses.replace(DEADLINES, boot_s=30.0))
    for worker in ("w0", "w1", "w2"):
        machine.handle(Register(Identity(worker, "host", "127.0.0.1", 1, 2), 2, 1, 0), 0.0)
    blank = Observation(phase=Phase.BROKEN, generation=0, step=0, leases_of=0, reason="not all members came in time")
    for at in range(1, 36):
        plan = machine.record.plan
        assert plan is not None and plan.roster == ("w0", "w1"), at
        if at % 15 == 0:
            for worker in plan.roster:
                seen = msgspec.structs.replace(blank, generation=plan.generation, at=float(at))
                machine.handle(Reported(worker, seen), float(at))
        machine.handle(TimePassed(), float(at))
    assert [one.identity.id for one in machine.record.members] == ["w0", "w1", "w2"]


def test_a_newcomer_that_does_not_come_to_its_ring_is_dropped() -> None:
    job = Job()
    job.join("w2", 1.0)
    job.see("w2", Phase.READY, 0, 0, 2.0)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.after_step is not None
    for worker in ("w0", "w1"):  # after a step time-out, in which the ring did not form
        job.see(worker, Phase.BROKEN, plan.generation, plan.after_step, 30.0)
    job.wait(30, 33)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.roster == ("w0", "w1")


def test_members_that_have_long_to_train_before_the_switch_do_not_hang_though_the_newcomer_is_there() -> None:
    """A pipeline has read far ahead: the switch is minutes away, and a newcomer goes there at once."""
    job = Job()
    job.join("w2", 1.0)
    job.see("w2", Phase.READY, 0, 0, 2.0)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.after_step is not None
    job.see("w2", Phase.BROKEN, plan.generation, 0, 12.0)  # it has waited there, for as long as a ring may take
    job.wait(12, 100)
    assert job.lost == {}
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, plan.after_step - 1, 100.0)
    job.wait(100, 200)
    assert job.lost == {}
    job.see("w0", Phase.TRAINING, 1, plan.after_step, 200.0)
    job.wait(200, 221)
    assert "w1" in job.lost, "now it is due"


def sending_job() -> tuple[Job, int]:
    """Return a job in which w2 is to get the state of w0 beside the first steps of its ring, and the switch's step."""
    job = Job()
    for worker in job.workers:
        job.see(worker, Phase.TRAINING, 1, 0, 1.0, prepares=True, sends_state=True)
    job.join("w2", 1.0)
    job.see("w2", Phase.READY, 0, 0, 2.0, prepares=True, sends_state=True)
    for worker, phase in (("w2", Phase.READY), ("w1", Phase.TRAINING), ("w0", Phase.TRAINING)):
        stands: dict[str, Any] = {"prepared": (2, ""), "offer": 7, "met": (1,)}
        job.see(worker, phase, int(phase is Phase.TRAINING), 0, 3.0, prepares=True, sends_state=True, **stands)
    plan = job.machine.record.plan
    assert plan is not None
    assert (plan.roster, plan.beside, plan.offer) == (("w0", "w1", "w2"), 1, 7)
    assert plan.after_step
    return job, plan.after_step


def test_a_newcomer_that_waits_for_the_state_of_one_that_hangs_does_not_hang() -> None:
    job, after_step = sending_job()
    job.see("w1", Phase.TRAINING, 2, after_step, 100.0)
    job.wait(100, 119)
    assert job.lost == {}
    job.wait(119, 121)
    assert list(job.lost) == ["w0"], "w2 can be there no sooner"


def test_a_newcomer_whose_state_is_there_is_awaited_from_then_on() -> None:
    job, after_step = sending_job()
    job.see("w1", Phase.TRAINING, 2, after_step, 100.0)
    job.see("w0", Phase.TRAINING, 2, after_step, 115.0)
    job.wait(115, 134)
    assert job.lost == {}
    job.wait(134, 136)
    assert list(job.lost) == ["w2"]


def test_a_worker_that_fails_at_each_ring_does_not_hang() -> None:
    job = Job()
    job.feed(Vanished("w1", "gone"), 1.0)
    for turn in range(5):
        plan = job.machine.record.plan
        assert plan is not None
        job.see("w0", Phase.BROKEN, plan.generation, 0, 10.0 + 15.0 * turn)
        job.wait(10 + 15 * turn, 23 + 15 * turn)
    assert job.lost == {"w1": "gone"}


def test_an_id_is_never_used_twice() -> None:
    job = Job()
    job.feed(Vanished("w1", "gone"), 1.0)
    job.join("w1", 2.0)
    assert job.state("w1") is None


def test_a_leader_that_was_away_judges_no_worker_by_that() -> None:
    """Nothing could be written for a minute: what the others have done meanwhile lies in its queue."""
    job = Job()
    job.join("w2", 1.0)
    job.wait(1, 90)
    job.see("w0", Phase.TRAINING, 1, 9, 500.0)
    job.see("w2", Phase.REHEARSING, 0, 0, 500.0)
    assert job.lost == {}
    assert job.state("w2") is WorkerState.WARMING


def test_a_worker_that_holds_up_a_step_for_too_long_is_lost_moments_after_the_others_gave_up() -> None:
    job = Job()
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 7, 5.0)
    job.wait(5, 15)
    assert not job.lost, "no member has said that anything is wrong"
    job.see("w0", Phase.BROKEN, 1, 7, 15.0)
    job.wait(15, 17)
    assert not job.lost, "it may be about to find the same"
    job.wait(17, 18)
    assert job.lost == {
        "w1": "its step took longer than --step-timeout, and the others gave up waiting for it: it hangs in step 8"
    }
    assert job.machine.record.plan is not None and job.machine.record.plan.roster == ("w0",)


def test_a_step_is_not_longer_as_its_leader_was_away() -> None:
    """It heard only after 12 s, in which nothing could be written, that the ring had broken within one."""
    job = Job()
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 7, 5.0)
    job.see("w0", Phase.BROKEN, 1, 7, 6.0, heard_at=17.0)
    job.wait(17, 22)
    assert not job.lost


def test_a_worker_that_finds_the_ring_broken_too_is_not_the_one_that_hangs() -> None:
    job = Job()
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 7, 5.0)
    job.see("w0", Phase.BROKEN, 1, 7, 15.0)
    job.see("w1", Phase.BROKEN, 1, 7, 16.0)
    job.wait(16, 24)
    assert not job.lost, "the next ring may take its time"


def test_a_worker_that_has_made_the_step_for_which_others_waited_in_vain_is_not_the_one_that_hangs() -> None:
    """It is ahead: what all reduced came to it alone, and what its script does before the next step takes long."""
    job = Job(workers=4)
    for worker in job.workers:
        job.see(worker, Phase.TRAINING, 1, 7, 5.0)
    job.see("w1", Phase.TRAINING, 1, 8, 5.5)
    job.see("w3", Phase.TRAINING, 1, 8, 5.5)
    job.see("w0", Phase.BROKEN, 1, 7, 15.0)
    job.wait(15, 18)
    assert list(job.lost) == ["w2"]
    job.see("w1", Phase.BROKEN, 1, 8, 19.0)  # as it comes to the next step at last; it has waited for none there
    job.wait(19, 23)
    assert list(job.lost) == ["w2"], "w3 is ahead as well, and due in the next ring"
    assert job.machine.record.plan is not None and job.machine.record.plan.roster == ("w0", "w1", "w3")
    job.wait(23, 40)
    assert "has not come to its ring" in job.lost["w3"], "no wait is without an end"


def test_a_ring_that_fails_early_in_a_step_leaves_the_others_the_rest_of_their_time() -> None:
    job = Job()
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 7, 5.0)
    job.see("w0", Phase.BROKEN, 1, 7, 8.0)
    job.wait(8, 29)
    assert not job.lost
    job.see("w0", Phase.BROKEN, 2, 7, 29.0)
    job.wait(29, 30)
    assert list(job.lost) == ["w1"], "it has not come to the next ring within two of the longest steps"


@pytest.mark.parametrize(
    ("stall_s", "workers", "too_long"),
    [(58.4, 3, False), (58.5, 3, True), (54.0, 1000, True), (53.9, 1000, False), (0.0, 3, False)],
)
def test_a_step_is_measured_by_reports_which_may_be_late(stall_s: float, workers: int, too_long: bool) -> None:
    assert Deadlines.of(60).was_too_long(stall_s, workers) is too_long


def test_short_steps_are_too_long_at_half_their_time_at_least() -> None:
    assert not Deadlines.of(2).was_too_long(0.9, 3)
    assert Deadlines.of(2).was_too_long(1.0, 3)


LAST = 5  # the last step of a hundred samples, in mini-batches of ten for each of two workers


def test_a_worker_that_hangs_in_the_last_step_that_there_are_samples_for_is_lost() -> None:
    """The others wait for samples, in no all-reduce that could time out."""
    job = Job(DataSpec(total=100, epochs=1, batch=10))
    ledger = job.machine.ledger
    assert ledger is not None and ledger.wanted_step == LAST
    job.see("w0", Phase.TRAINING, 1, LAST - 1, 5.0)
    job.see("w1", Phase.TRAINING, 1, LAST - 1, 5.0)
    job.wait(5, 100)
    assert not job.lost, "both may be in a long step"
    job.see("w0", Phase.TRAINING, 1, LAST, 100.0)
    job.wait(100, 119)
    assert not job.lost, "it may come to its end"
    job.wait(119, 121)
    assert job.lost == {
        "w1": "it has not ended the last step that there are samples for within 20 s, two step time-outs, "
        "as the others have: it hangs"
    }


def test_a_worker_that_ends_the_last_step_in_time_does_not_hang() -> None:
    job = Job(DataSpec(total=100, epochs=1, batch=10))
    job.see("w0", Phase.TRAINING, 1, LAST, 5.0)
    job.wait(5, 24)
    job.see("w1", Phase.TRAINING, 1, LAST, 24.0)
    job.wait(24, 900)
    assert job.lost == {}, "scripts may evaluate for as long as they like"


def test_where_there_are_samples_a_worker_behind_the_others_is_left_to_their_all_reduce() -> None:
    job = Job()
    job.see("w0", Phase.TRAINING, 1, 7, 5.0)
    job.see("w1", Phase.TRAINING, 1, 6, 5.0)
    job.wait(5, 900)
    assert job.lost == {}


def marked_job(at: float) -> tuple[Job, tuple[int, int]]:
    """All are at step 5, and what is leased ahead is cut anew; with the mark as the leader has set it."""
    job = Job()
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 5, at)
    job.feed(AskBatch(30), at)
    under_way = job.machine.record.sizing.rebatch
    assert under_way is not None
    return job, (under_way.number, under_way.mark)


def test_a_worker_that_hangs_while_another_waits_at_the_mark_is_lost() -> None:
    """No all-reduce can time out: the one that waits begins no step before leases are cut anew."""
    job, mark = marked_job(5.0)
    job.see("w0", Phase.TRAINING, 1, mark[1] - 1, 5.0, marked=mark)
    job.wait(5, 100)
    assert not job.lost, "the other may be in a long step, and w0 is not at the mark yet"
    job.see("w0", Phase.TRAINING, 1, mark[1], 100.0, marked=mark)
    job.wait(100, 119)
    assert not job.lost, "it may still tell"
    job.wait(119, 121)
    assert job.lost == {
        "w1": "it has not told how far it has read its samples within 20 s, two step time-outs, "
        "and the others wait for that: it hangs"
    }


def test_a_worker_that_tells_in_time_does_not_hang() -> None:
    job, mark = marked_job(5.0)
    job.see("w0", Phase.TRAINING, 1, mark[1], 5.0, marked=mark)
    job.wait(5, 24)
    job.see("w1", Phase.TRAINING, 1, mark[1] - 1, 24.0, marked=mark)
    job.wait(24, 900)
    assert job.lost == {}
