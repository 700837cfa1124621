"""What is left of several workers saves the job, where none of them is whole."""

from __future__ import annotations

from typing import Any

import pytest

from edl.core.checkpoint.remnants import whole_worker
from edl.core.job.leader_inputs import PublishSaving, Refuse, SavingPublished, Vanished
from edl.core.job.orders import OrderBook
from edl.core.worker.observed_trainer import DIED
from edl.protocol.assignment import Verdict
from edl.protocol.checkpoint_record import FileInfo, PartInfo, Remnant, Why
from edl.protocol.leader_messages import Phase
from edl.protocol.record import JobState
from edl.protocol.tally import HELD, LimbSeen
from tests.unit.core.checkpoint.test_checkpoints import Job

PART = PartInfo((FileInfo("part", 100, ""), FileInfo("own", 10, "")))


class LimbedJob(Job):
    """Two workers of two processes that train."""

    processes = 2

    def dies(self, worker: str, left: int, step: int | None = None) -> list[Any]:
        """All processes of the worker but `left` are killed."""
        step = self.last[worker].step if step is None else step
        limbs = tuple(LimbSeen(1, HELD if limb == left else "gone", step) for limb in range(2))
        return self.see(worker, phase=Phase.FAILED, reason=DIED, limbs=limbs)

    def orders(self, worker: str) -> Any:
        return OrderBook(self.record, 1).orders(worker)


class JobOfThree(LimbedJob):
    workers = ("a", "b", "c")


@pytest.fixture
def job() -> LimbedJob:
    job = LimbedJob()
    job.both(step=7)
    return job


def test_what_is_left_of_two_workers_is_saved_as_one_and_the_job_ends_with_that(job: LimbedJob) -> None:
    job.dies("a", left=1)
    assert job.orders("a").verdict is Verdict.STAY
    assert job.orders("a").save is None
    job.dies("b", left=0)
    saving = job.record.checkpoints.saving
    assert saving is not None
    assert (saving.why, saving.after_step, saving.roster) == (Why.REMNANTS, 7, ("b", "a"))
    assert saving.ledger is not None
    assert saving.ledger.step == 7
    for worker, limb in (("a", 1), ("b", 0)):
        order = job.orders(worker)
        assert (order.verdict, order.save.part, order.save.parts, order.save.limbs) == (Verdict.STAY, 0, 1, (limb,))
    job.see("a", saved_part=(saving.number, PART))
    assert job.record.state is not JobState.FAILED
    assert PublishSaving(saving.number) in job.see("b", saved_part=(saving.number, PART))
    job.feed(SavingPublished(saving.number))
    assert job.record.checkpoints.saved is not None
    assert job.record.checkpoints.saved.step == 7
    assert job.record.state is JobState.FAILED
    assert job.record.reason.startswith("no worker is left that has the model's state")
    assert job.orders("a").verdict is Verdict.STOP


def test_nothing_is_saved_so_while_a_worker_is_whole() -> None:
    job = JobOfThree()
    for worker in "abc":
        job.see(worker, step=7)
    job.dies("a", left=1)
    job.dies("b", left=0)
    assert len(job.record.checkpoints.remnants) == 2
    assert job.record.checkpoints.saves == 0
    assert job.record.plan is not None
    assert job.record.plan.roster == ("c",)
    job.dies("c", left=0)
    assert job.record.checkpoints.saving.roster == ("b", "a")


def test_halves_of_the_same_places_save_nothing(job: LimbedJob) -> None:
    job.dies("a", left=1)
    job.dies("b", left=1)
    assert job.record.state is JobState.FAILED
    assert job.record.checkpoints.saves == 0


def test_halves_of_different_steps_save_nothing(job: LimbedJob) -> None:
    job.dies("a", left=1)
    job.dies("b", left=0, step=8)
    assert job.record.state is JobState.FAILED


def test_a_step_that_is_durable_is_not_saved_again() -> None:
    job = LimbedJob(every_steps=5)
    job.both(step=6)
    after = job.record.checkpoints.saving.after_step
    job.both(step=after)
    for worker in "ab":
        job.store(worker)
    job.feed(SavingPublished(1))
    job.dies("a", left=1)
    job.dies("b", left=0)
    assert job.record.state is JobState.FAILED
    assert job.record.checkpoints.saved.step == after


def test_a_job_without_a_folder_holds_nothing() -> None:
    job = LimbedJob(folder="")
    job.both(step=7)
    job.dies("a", left=1)
    assert job.record.checkpoints.remnants == ()
    assert job.orders("a").verdict is Verdict.STOP


def test_what_is_left_is_let_go_once_the_others_have_made_a_step(job: LimbedJob) -> None:
    job.dies("a", left=1)
    job.see("b", generation=2, began=7)
    assert job.record.generation == 2
    assert job.orders("a").verdict is Verdict.STAY
    job.see("b", step=8)
    assert job.record.checkpoints.remnants == ()
    assert job.orders("a").verdict is Verdict.STOP
    assert any(isinstance(one, Refuse) for one in job.see("a"))


def test_a_job_that_waits_for_workers_has_a_whole_one_and_lets_go() -> None:
    job = LimbedJob(minimum=2)
    job.both(step=7)
    job.dies("a", left=1)
    job.pass_time(0.1)
    assert job.record.state is not JobState.FAILED
    assert job.record.checkpoints.remnants == ()


def test_what_is_left_is_not_held_for_ever(job: LimbedJob) -> None:
    job.dies("a", left=1)
    job.pass_time(4.0)
    assert job.record.checkpoints.remnants
    job.pass_time(2.0)
    assert job.record.checkpoints.remnants == ()


def test_a_remnant_that_cannot_copy_ends_the_wait(job: LimbedJob) -> None:
    job.dies("a", left=1)
    job.dies("b", left=0)
    job.see("b", save_failed=(1, "its update had begun"))
    assert job.record.state is JobState.FAILED
    assert job.record.checkpoints.saved is None


def test_a_daemon_that_goes_with_what_is_left_ends_the_wait(job: LimbedJob) -> None:
    job.dies("a", left=1)
    job.dies("b", left=0)
    job.feed(Vanished("b", "its daemon's session ended"))
    assert job.record.state is JobState.FAILED


def test_the_next_leader_goes_on_with_the_saving(job: LimbedJob) -> None:
    job.dies("a", left=1)
    job.dies("b", left=0)
    job.lead_anew()
    assert job.record.state is not JobState.FAILED
    number = job.record.checkpoints.saving.number
    job.see("a", saved_part=(number, PART))
    job.see("b", saved_part=(number, PART))
    job.feed(SavingPublished(number))
    assert job.record.checkpoints.saved.step == 7


def test_a_whole_worker_is_made_of_each_place_once() -> None:
    a, b, c = Remnant("a", (1, 2), 5), Remnant("b", (0, 2), 5), Remnant("c", (0, 1, 2), 4)
    assert whole_worker((a,), 3) == ()
    assert whole_worker((a, b), 3) == (Remnant("b", (0,), 5), a)
    assert whole_worker((a, b, c), 3) == (Remnant("b", (0,), 5), a)
    assert whole_worker((a, c), 3) == (c,)
