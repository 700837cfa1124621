"""What policies are told of live jobs: of what their leaders measure, and of how their batch comes about."""

from __future__ import annotations

import pytest

from edl.cluster.policies.registry import build
from edl.cluster.queue.measured_speeds import FittedSpeeds
from edl.cluster.queue.queue_entries import JobEntry, NodeReport, Submission
from edl.cluster.queue.scheduler_inputs import (
    ChangeBatch,
    ClusterRules,
    JobLook,
    JobLooked,
    LifeReady,
    NodeReported,
    Submitted,
)
from edl.cluster.queue.scheduler_machine import SchedulerMachine
from edl.cluster.speed_analyzer import Analyzer
from edl.cluster.views import Aim, Rates
from edl.policy.learning import MeasuredNoise
from edl.protocol.job_policy import BatchRule
from edl.protocol.record import JobState, Status, WorkerState, WorkerStatus
from edl.protocol.tally import Rate, Usage
from edl.scheduler.job_poller import look_of


def _heard(*looks: JobLook, batch_range: tuple[int, int] | None = None, aim: Aim = Aim.GIVEN) -> Rates:
    speeds = FittedSpeeds(Analyzer())
    job = JobEntry(Submission("a", ("train",), "/", "ann", 0.0, max_np=8, batch_range=batch_range))
    for look in looks:
        speeds.hear(job, look)
    return speeds.speed(job).rates(8, 8, aim)


def _look(size: int, batch: int, step_s: float, *, grows: bool, noise: MeasuredNoise | None = None) -> JobLook:
    sqr, var = (None, None) if noise is None else (noise.sqr, noise.var)
    return JobLook("running", size=size, step=9, batch=batch, grows=grows, step_s=step_s, grad_sqr=sqr, grad_var=var)


def _status(*reported: dict[str, float]) -> Status:
    workers = tuple(
        WorkerStatus(f"w{rank}", rank, "h", 1, 2, WorkerState.TRAINING, 9, usage=Usage(at=1.0, step=9, reported=told))
        for rank, told in enumerate(reported)
    )
    size = len(workers)
    return Status(
        "a", JobState.RUNNING, "", 1, 1, "w0", 9, 0, size, size, 1, 8, workers, None, None, batch=32 * size,
        rate=Rate(size, 10, 320 * size, 1.0), batching=BatchRule.LOCAL,
    )  # fmt: skip


def test_where_the_batch_grows_with_the_workers_each_worker_adds_as_much() -> None:
    """Its steps take as long at any size: four workers pass over four times the data."""
    looks = [_look(size, 32 * size, 0.1 + 0.001 * size, grows=True) for size in (1, 2)]
    rates = _heard(*looks)
    assert rates.progress[3] / rates.progress[0] == pytest.approx(4, rel=0.15)
    assert rates.batch.tolist() == [32 * size for size in range(1, 9)]


def test_where_the_batch_is_one_for_all_more_workers_do_not_pass_over_more_data() -> None:
    looks = [_look(size, 64, 0.1 + 0.001 * size, grows=False) for size in (1, 2)]
    rates = _heard(*looks)
    assert rates.progress[3] / rates.progress[0] < 2
    assert max(rates.batch.tolist()) == 64


def test_a_batch_that_policies_may_choose_is_chosen_within_its_range() -> None:
    rates = _heard(_look(1, 32, 0.1, grows=True), batch_range=(32, 64))
    assert all(32 <= batch <= 64 for batch in rates.batch.tolist())


def test_one_worker_makes_one_pass_of_a_larger_batch_as_scripts_do() -> None:
    """Two passes, which would tell of the noise, would halve its speed here."""
    looks = [_look(1, batch, 0.1, grows=False) for batch in (32, 128)]
    rates = _heard(*looks, batch_range=(32, 128), aim=Aim.THROUGHPUT)
    assert rates.batch[0] == 128
    assert rates.throughput[0] == pytest.approx(1280, rel=0.2)


def test_what_a_job_reports_of_its_gradients_is_looked_at() -> None:
    """By any of its workers: one that has just come has not told it yet."""
    noise = {"grad_sqr": 2.0, "grad_var": 128.0, "loss": 1.0}
    look = look_of(_status({"loss": 1.0}, noise))
    assert (look.grad_sqr, look.grad_var, look.step_s, look.batch) == (2.0, 128.0, 0.1, 64)
    silent = look_of(_status({"loss": 1.0}))
    assert (silent.grad_sqr, silent.grad_var) == (None, None)


def test_a_larger_batch_is_worth_what_the_job_itself_works_out_by_its_noise() -> None:
    """The variance that a job tells is of one sample, and not of its batch."""
    noise = MeasuredNoise(sqr=1.0, var=640.0)
    looks = [_look(2, batch, 0.1, grows=False, noise=noise) for batch in (64, 512)]
    rates = _heard(*looks, batch_range=(64, 512), aim=Aim.PROGRESS)
    batch, steps_s = int(rates.batch[1]), rates.throughput[1] / rates.batch[1]
    assert batch > 64
    assert rates.progress[1] / steps_s == pytest.approx(noise.gain(64, batch))


@pytest.mark.parametrize(
    ("noise", "batch"),
    [
        (None, 64),  # not told: a sample beyond the job's own batch is worth nothing
        (MeasuredNoise(sqr=1.0, var=1e-3), 64),  # next to none
        (MeasuredNoise(sqr=1.0, var=-3.0), 64),  # an estimate of next to none
        (MeasuredNoise(sqr=1.0, var=1e6), 512),
        (MeasuredNoise(sqr=-1.0, var=1e6), 512),  # an estimate of a gradient that is all noise
    ],
)
def test_goodput_chooses_a_live_jobs_batch_by_the_noise_of_its_gradients(
    noise: MeasuredNoise | None, batch: int
) -> None:
    """A pass over more samples takes a little longer."""
    speeds = FittedSpeeds(Analyzer())
    machine = SchedulerMachine(build("goodput"), speeds, ClusterRules(decide_s=0.0), [])
    asked = Submission("a", ("train",), "/", "ann", 0.0, np=2, min_np=2, max_np=2, batch_range=(64, 512))
    machine.handle([NodeReported(NodeReport("n", (0, 1))), Submitted(asked)], 0.0)
    machine.handle([LifeReady("a", 1, 1, "", 0)], 1.0)
    acts: list[object] = []
    for at, samples in enumerate((64, 512, 64), 2):  # as if both had been tried
        look = _look(2, samples, 0.1 + 1e-5 * samples, grows=False, noise=noise)
        acts += machine.handle([JobLooked("a", 1, look)], 20.0 * at).acts
    chosen = [act.samples for act in acts if isinstance(act, ChangeBatch)]
    assert (chosen or [64])[-1] == batch
