"""Scripts that do not do the same in a job's first mini-batch end the job with what each waited for."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import meet

from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Reported
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.worker.observed_trainer import DIED
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import GRADIENTS, Observation, Phase, Register, ScriptPlace, Void
from edl.protocol.record import FailedBy, Identity, JobState

SPEC = DataSpec(total=100_000, epochs=1, batch=10)
TIMEOUT_S = 10.0


class Job:
    """A leader's machine with two workers that sit in the first ring and have made so many steps."""

    def __init__(self, step: int = 0) -> None:
        self.machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0), Deadlines.of(TIMEOUT_S))
        for worker in ("w0", "w1"):
            self.feed(Register(Identity(worker, "host", "127.0.0.1", 1, 2), 2, 1, 0), 0.0)
        for worker in ("w0", "w1"):
            self.see(worker, 1.0, 0)
        for worker in ("w0", "w1"):
            self.see(worker, 5.0, step)

    def feed(self, happened: object, at: float) -> None:
        self.machine.handle(happened, at)  # type: ignore[arg-type]
        meet(self.machine, at)

    def see(self, worker: str, at: float, step: int = 0, phase: Phase = Phase.TRAINING, **more: object) -> None:
        blank = Observation(
            phase=phase,
            generation=1,
            step=step,
            leases_of=1,
            step_time_s=0.01,
            data=SPEC,
            reason="an error" * (phase is Phase.FAILED),
        )
        self.feed(Reported(worker, msgspec.structs.replace(blank, at=at, **more)), at)

    def waits(self, worker: str, what: str, step: int = 0, *, vain: bool = True, phase: Phase = Phase.TRAINING) -> None:
        place = ScriptPlace(step + 1, f"train.py:{step}", 1, what, vain)
        self.see(worker, 16.0, step, phase, whereabouts=place)

    @property
    def reason(self) -> str:
        record = self.machine.record
        assert (record.state is JobState.FAILED) == bool(record.reason)
        return record.reason


def test_each_worker_is_named_with_what_it_waits_for_and_where() -> None:
    job = Job()
    job.waits("w0", "a comparison")
    assert not job.reason
    job.waits("w1", "a model")
    assert "rank 0 (w0) waits for a comparison, in step 1 at train.py:0; rank 1 (w1) waits for a model" in job.reason
    assert job.machine.record.ending.failed_by is FailedBy.REFUSAL


@pytest.mark.parametrize(
    ("first", "second", "vain"),
    [("a model", "a model", True), ("a model", "", True), ("a model", "a comparison", False)],
    ids=["for the same", "one works", "not for long"],
)
def test_what_may_yet_come_is_waited_for(first: str, second: str, vain: bool) -> None:
    job = Job()
    job.waits("w0", first)
    job.waits("w1", second, vain=vain)
    assert not job.reason


def test_one_that_has_given_the_ring_up_and_one_whose_script_ends_by_that() -> None:
    """In the other order, too: which of the two is heard of first is chance."""
    for order in (0, 1):
        job = Job()
        job.waits("w0", "loss", vain=False)
        told = [
            lambda job=job: job.waits("w0", "loss", vain=False, phase=Phase.FAILED),
            lambda job=job: job.see("w1", 16.0, 1, void=Void(1, GRADIENTS, TIMEOUT_S)),
        ]
        if order:
            job.waits("w1", GRADIENTS, step=1)
            told.pop()
        for tell in reversed(told):
            tell()
        assert "rank 0 (w0) waits for loss" in job.reason and "rank 1 (w1) waits for the gradients" in job.reason


def test_a_worker_that_is_killed_does_not_say_what_its_script_waits_for() -> None:
    """What it had told of was over: it died as it computed, and the others go on without it."""
    job = Job()
    job.waits("w1", "a barrier", vain=False)
    job.waits("w0", GRADIENTS)
    place = ScriptPlace(1, "train.py:0", 1, "a barrier", True)
    job.see("w1", 17.0, phase=Phase.FAILED, reason=DIED, whereabouts=place)
    assert not job.reason and [one.identity.id for one in job.machine.record.members] == ["w0"]


def test_where_all_have_made_a_step_alike_only_those_who_stray_are_lost() -> None:
    job = Job(step=7)
    job.see("w0", 16.0, 7, void=Void(1, GRADIENTS, TIMEOUT_S))
    job.see("w1", 16.0, 7, void=Void(1, "loss"))
    assert not job.reason and [one.identity.id for one in job.machine.record.members] == ["w0"]


def test_what_was_waited_for_in_another_ring_or_step_says_nothing() -> None:
    job = Job()
    job.waits("w0", "a comparison")
    job.see("w1", 16.0, whereabouts=ScriptPlace(1, "train.py:1", 2, "a model", True))
    job.see("w1", 17.0, whereabouts=ScriptPlace(2, "train.py:1", 1, "a model", True))
    assert not job.reason
