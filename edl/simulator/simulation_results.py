"""The results of a simulation: of each job, and of all together. Times are seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from edl.simulator.simulated_cluster import Played
from edl.simulator.simulated_job import SimulatedJob


class JobFigures(msgspec.Struct, frozen=True):
    """`slowdown` is the job's time divided by its time alone on its share of the cluster (finish-time fairness)."""

    name: str
    submitted: float
    started: float | None
    finished: float | None
    changes: int
    completion: float | None  # from submission to end
    waited: float  # time without any worker
    service: float  # device-seconds
    most_workers: int
    deadline: float | None
    deadline_met: bool | None
    slowdown: float | None


class Summary(msgspec.Struct, frozen=True):
    """`mean` to `p99` are completion times. `utilization` is that of the devices, until the last job's end."""

    jobs: int
    finished: int
    mean: float | None
    median: float | None
    p95: float | None
    p99: float | None
    makespan: float
    utilization: float
    training: float  # like `utilization`, without the time in which changes kept jobs from training
    queueing: float | None  # mean time to a job's first workers
    waiting: float | None  # mean time without any worker
    changes: float  # mean of a job
    slowdown: float | None  # mean
    worst_slowdown: float | None
    unfair: float | None  # share of jobs that took longer than alone on their share
    deadlines: int
    deadlines_met: int
    decisions: int


class ClusterFigures(msgspec.Struct, frozen=True):
    jobs: tuple[JobFigures, ...]
    summary: Summary


def figures_of(outcome: Played, devices: int) -> ClusterFigures:
    fair = _fair_times(outcome.jobs, devices)
    jobs = tuple(_of_job(one, alone) for one, alone in zip(outcome.jobs, fair, strict=True))
    first = min(job.submitted for job in jobs)
    last = max([job.finished for job in jobs if job.finished is not None], default=outcome.ended)
    capacity = devices * max(last - first, 1e-9)
    completions = [job.completion for job in jobs if job.completion is not None]
    slowdowns = [job.slowdown for job in jobs if job.slowdown is not None]
    with_deadline = [job for job in jobs if job.deadline_met is not None]
    rested = sum(one.rested for one in outcome.jobs)
    service = sum(job.service for job in jobs)
    p95, p99 = (_percentile(completions, share) for share in (95, 99))
    return ClusterFigures(
        jobs,
        Summary(
            jobs=len(jobs),
            finished=len(completions),
            mean=_mean(completions),
            median=_percentile(completions, 50),
            p95=p95,
            p99=p99,
            makespan=last - first,
            utilization=service / capacity,
            training=(service - rested) / capacity,
            queueing=_mean([job.started - job.submitted for job in jobs if job.started is not None]),
            waiting=_mean([job.waited for job in jobs]),
            changes=sum(job.changes for job in jobs) / len(jobs),
            slowdown=_mean(slowdowns),
            worst_slowdown=max(slowdowns, default=None),
            unfair=_mean([float(slowdown > 1) for slowdown in slowdowns]),
            deadlines=len(with_deadline),
            deadlines_met=sum(bool(job.deadline_met) for job in with_deadline),
            decisions=outcome.decisions,
        ),
    )


def _of_job(one: SimulatedJob, alone: float) -> JobFigures:
    job = one.job
    completion = None if one.finished is None else one.finished - job.submitted
    return JobFigures(
        name=job.name,
        submitted=job.submitted,
        started=one.began,
        finished=one.finished,
        changes=one.changes,
        completion=completion,
        waited=one.waited,
        service=one.service,
        most_workers=one.most_tried,
        deadline=job.deadline,
        deadline_met=None if job.deadline is None else one.finished is not None and one.finished <= job.deadline,
        slowdown=None if completion is None else completion / alone,
    )


def _fair_times(jobs: Sequence[SimulatedJob], devices: int) -> list[float]:
    """Return the time of each job on its own share: the devices divided by the average number of
    jobs during its life.
    """
    ends = [one.finished if one.finished is not None else one.at for one in jobs]
    begins = np.sort([one.job.submitted for one in jobs])
    # Job-seconds until `when`: the sum of the lengths of all jobs' lives, cut at `when`.
    begun = np.concatenate([[0.0], np.cumsum(begins)])
    over_at = np.sort(ends)
    over = np.concatenate([[0.0], np.cumsum(over_at)])

    def job_seconds(when: float) -> float:
        started, ended = int(np.searchsorted(begins, when)), int(np.searchsorted(over_at, when))
        return float(started * when - begun[started] - (ended * when - over[ended]))

    found = []
    for one, end in zip(jobs, ends, strict=True):
        job = one.job
        there = max(1.0, (job_seconds(end) - job_seconds(job.submitted)) / max(end - job.submitted, 1e-9))
        step = job.course.step((job.request,), job.batch)
        alone = job.course.steps(job.course.total, step.batch) * step.seconds
        found.append(alone * max(1.0, job.request * there / devices))
    return found


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _percentile(values: Sequence[float], share: float) -> float | None:
    return float(np.percentile(values, share)) if len(values) else None
