"""Which member of a ring that was given up is lost: who does not find it so, or who waits for another thing."""

from __future__ import annotations

import msgspec
from machine_job import meet

from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Reported, Tell, TimePassed
from edl.core.job.leader_machine import JobMachine, new_record
from edl.facts import WorkerLost
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import GRADIENTS, Observation, Phase, Register, ScriptPlace, Void
from edl.protocol.record import Identity

SPEC = DataSpec(total=100_000, epochs=1, batch=10)
TIMEOUT_S = 10.0


class Job:
    """A leader's machine with three workers that train, all at step 7."""

    def __init__(self) -> None:
        self.machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0), Deadlines.of(TIMEOUT_S))
        self.lost: dict[str, str] = {}
        for worker in ("w0", "w1", "w2"):
            self.feed(Register(Identity(worker, "host", "127.0.0.1", 1, 2), 3, 1, 0), 0.0)
        for worker in ("w0", "w1", "w2"):
            self.see(worker, 0.0, step=0)
        for worker in ("w0", "w1", "w2"):
            self.see(worker, 5.0)

    def feed(self, happened: object, at: float) -> None:
        for command in [*self.machine.handle(happened, at), *meet(self.machine, at)]:  # type: ignore[arg-type]
            if isinstance(command, Tell) and isinstance(command.fact, WorkerLost):
                self.lost[command.fact.worker] = command.fact.reason

    def see(self, worker: str, at: float, *, step: int = 7, **more: object) -> None:
        blank = Observation(phase=Phase.TRAINING, generation=1, step=step, leases_of=1, step_time_s=0.01, data=SPEC)
        self.feed(Reported(worker, msgspec.structs.replace(blank, at=at, **more)), at)

    def voided(self, worker: str, awaited: str = GRADIENTS, waited_s: float = 0.0, step: int = 7) -> None:
        self.see(worker, 15.0, step=step, void=Void(1, awaited, waited_s))

    def pass_moments(self) -> dict[str, str]:
        """As long as a leader waits after a ring was given up. It wakes by itself, and not only each second."""
        assert self.machine.wake_at <= 15.0 + Deadlines.of(TIMEOUT_S).finding_s
        self.feed(TimePassed(), 15.9)
        assert not self.lost
        self.feed(TimePassed(), 16.0)
        return self.lost


def test_who_has_given_up_says_so_before_the_end_of_its_mini_batch_and_who_has_not_is_lost() -> None:
    job = Job()
    job.voided("w0", waited_s=TIMEOUT_S)
    job.voided("w1")
    assert list(job.pass_moments()) == ["w2"]


def test_the_reason_says_where_the_script_stands_and_what_holds_it_up() -> None:
    job = Job()
    job.see("w2", 10.0, whereabouts=ScriptPlace(8, "train.py:20 (load)"), halted="its process is stopped (SIGSTOP)")
    job.voided("w0", waited_s=TIMEOUT_S)
    job.voided("w1")
    (reason,) = job.pass_moments().values()
    assert reason.endswith("it hangs in step 8 at train.py:20 (load); its process is stopped (SIGSTOP)")


def test_where_it_stood_in_an_earlier_step_says_nothing() -> None:
    job = Job()
    job.see("w2", 10.0, whereabouts=ScriptPlace(7, "train.py:20 (load)"))
    job.voided("w0", waited_s=TIMEOUT_S)
    job.voided("w1")
    (reason,) = job.pass_moments().values()
    assert reason.endswith("it hangs in step 8")


def test_a_ring_that_failed_early_in_its_step_makes_no_member_hang() -> None:
    job = Job()
    for worker in ("w0", "w1"):
        job.see(worker, 6.0, void=Void(1))
    for at in range(6, 13):
        job.feed(TimePassed(), float(at))
    assert not job.lost


def test_what_a_script_does_until_the_end_of_its_void_mini_batch_is_no_wait_in_the_ring() -> None:
    """A member that has gone to the next ring by then, or is at something else, has held up nobody for so long."""
    job = Job()
    void = Void(1, GRADIENTS)  # the ring failed by itself, soon: it had waited for some seconds
    job.see("w0", 7.0, void=void)
    job.see("w0", 7.0 + 2 * TIMEOUT_S, void=void, phase=Phase.BROKEN)
    for at in range(27, 40):
        job.feed(TimePassed(), float(at))
    assert not job.lost


def test_a_ring_that_has_lost_a_member_failed_for_that_whatever_others_waited_for_before() -> None:
    job = Job()
    job.see("w2", 14.9, phase=Phase.FAILED, reason="killed")
    job.voided("w0")
    for at in range(15, 30):
        job.feed(TimePassed(), float(at))
    assert list(job.lost) == ["w2"], "w1 may have left that ring for the next one by then"


def test_who_has_waited_for_too_long_by_its_own_clock_has_though_a_member_is_gone() -> None:
    job = Job()
    job.see("w2", 14.9, phase=Phase.FAILED, reason="killed")
    job.voided("w0", waited_s=TIMEOUT_S)
    for at in range(15, 17):
        job.feed(TimePassed(), float(at))
    assert list(job.lost) == ["w2", "w1"]


def test_where_all_have_found_it_no_member_is_lost() -> None:
    job = Job()
    job.voided("w0", waited_s=TIMEOUT_S)
    job.voided("w1")
    job.voided("w2", awaited="")
    job.feed(TimePassed(), 30.0)
    assert not job.lost


def test_who_waits_for_another_thing_than_the_gradients_is_lost_though_there_are_more_of_those() -> None:
    """At once: their next ring may stand in moments."""
    job = Job()
    job.voided("w0", "metric")
    job.voided("w1", waited_s=TIMEOUT_S)
    assert not job.lost, "w2 may be the one that all wait for"
    job.voided("w2", "metric")
    assert list(job.lost) == ["w0", "w2"], "at once: the next ring would stand within moments, and come to the same"
    assert job.machine.record.plan is not None and job.machine.record.plan.roster == ("w1",)
    assert "it waited instead of the gradients for metric, in step 8" in job.lost["w0"]


def test_without_gradients_what_most_wait_for_is_right() -> None:
    job = Job()
    job.voided("w0", "loss", waited_s=TIMEOUT_S)
    job.voided("w1", "metric")
    job.voided("w2", "metric")
    assert list(job.lost) == ["w0"]


def test_as_long_as_one_has_not_found_it_the_others_may_all_wait_for_that_one() -> None:
    job = Job()
    job.voided("w0", waited_s=TIMEOUT_S)
    job.voided("w1", "metric")
    assert list(job.pass_moments()) == ["w2"]


def test_a_member_that_is_ahead_is_never_lost() -> None:
    """What it has applied would be."""
    job = Job()
    job.voided("w0", waited_s=TIMEOUT_S)
    job.voided("w1")
    job.voided("w2", "metric", step=8)
    job.feed(TimePassed(), 30.0)
    assert not job.lost


def test_a_ring_that_fails_by_itself_makes_no_other_collective_wrong() -> None:
    job = Job()
    for worker, awaited in (("w0", GRADIENTS), ("w1", GRADIENTS), ("w2", "metric")):
        job.see(worker, 7.0, void=Void(1, awaited))
    job.feed(TimePassed(), 9.0)
    assert not job.lost


def test_a_long_step_of_ones_own_is_no_wait_for_others() -> None:
    """It has evaluated for long, say, and finds its ring broken as it comes to the next collective."""
    job = Job()
    job.see("w0", 17.0, phase=Phase.BROKEN, void=Void(1))
    for at in range(17, 30):
        job.feed(TimePassed(), float(at))
    assert not job.lost


def test_a_ring_may_have_a_time_out_of_its_own_that_comes_first() -> None:
    job = Job()
    job.see("w0", 15.0, phase=Phase.BROKEN, void=Void(1, GRADIENTS))
    job.see("w1", 15.0, phase=Phase.BROKEN, void=Void(1, GRADIENTS))
    assert list(job.pass_moments()) == ["w2"]


def test_who_has_made_the_step_that_was_given_up_is_not_lost_for_it_whoever_waits_in_the_next_one() -> None:
    job = Job()
    job.see("w2", 5.5, step=8)
    job.voided("w0", waited_s=TIMEOUT_S)
    job.voided("w1", waited_s=TIMEOUT_S, step=8)
    job.feed(TimePassed(), 16.0)
    assert not job.lost
