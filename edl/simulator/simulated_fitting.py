"""The speeds of jobs that policies see: the true ones, or those that an analyzer fits to reports of simulated jobs.

The analyzer is that of live jobs, in simulated time. A job reports values that it would measure itself: the time of its
steps, the part of it that it waited for its peers, and its gradients' statistics. The analyzer never sees a table of
the trace.
"""

from __future__ import annotations

from typing import Final, Protocol

from edl.cluster.speed_analyzer import Analyzer, Batches
from edl.cluster.views import Speed
from edl.simulator.simulated_job import SimulatedJob
from edl.simulator.trace import TraceJob, TrueSpeed


class Speeds(Protocol):
    def begin(self, one: SimulatedJob) -> None:
        """Note that a job has come."""

    def hear(self, one: SimulatedJob) -> None:
        """Note that a job has run for a while in its present form."""

    def end(self, one: SimulatedJob) -> None:
        """Note that a job is over."""

    def speed(self, one: SimulatedJob) -> Speed: ...


class Truth:
    """The true speeds, as an oracle knows them."""

    def begin(self, one: SimulatedJob) -> None:
        """Do nothing: the oracle knows all jobs."""

    def hear(self, one: SimulatedJob) -> None:
        """Do nothing: the oracle needs no reports."""

    def end(self, one: SimulatedJob) -> None:
        """Do nothing: the oracle keeps no state."""

    def speed(self, one: SimulatedJob) -> Speed:
        return TrueSpeed(one.job.course, one.done, one.job.batch)


SHARE: Final = 64  # samples of one worker, if the trace has no batch
LONGEST_WAIT: Final = 0.99  # of a step


class Fitted:
    """Speeds from an analyzer, which gets each job's own measurements."""

    def __init__(self) -> None:
        self._analyzer = Analyzer()
        self._alone: dict[str, float] = {}  # job -> seconds of one sample of one worker, without peers

    def begin(self, one: SimulatedJob) -> None:
        self._analyzer.expect(one.job.name, batches_of(one.job))
        if one.job.course.span is None:
            size = one.job.smallest
            step = one.job.course.step((size,), 0)
            self._alone[one.job.name] = step.seconds / _samples(one.job, size)

    def hear(self, one: SimulatedJob) -> None:
        if one.step is None or not one.trained:
            return
        job, step = one.job, one.step
        samples = step.pass_batch or _samples(job, one.workers)
        pass_s = step.pass_s * one.slowdown
        if job.name in self._alone:
            wait_s = pass_s - self._alone[job.name] * samples  # the trace has only the sum of work and wait
        else:
            wait_s = step.sync_s + step.pass_s * (one.slowdown - 1)  # the others wait for a straggler
        noise = job.course.noise(one.done, step.batch)
        self._analyzer.observe(
            job.name,
            one.workers,
            len(one.placement),
            samples,
            pass_s,
            min(max(0.0, wait_s), LONGEST_WAIT * pass_s),
            None if noise is None else noise.sqr,
            None if noise is None else noise.var,
        )

    def end(self, one: SimulatedJob) -> None:
        self._analyzer.forget(one.job.name)
        self._alone.pop(one.job.name, None)

    def speed(self, one: SimulatedJob) -> Speed:
        return self._analyzer.speed(one.job.name)


def batches_of(job: TraceJob) -> Batches:
    span = job.course.span
    if span is None:
        own = job.batch or SHARE * job.largest
        return Batches(own=own, smallest=own, largest=own)
    return Batches(
        own=span.own,
        smallest=span.smallest,
        largest=span.largest,
        smallest_pass=span.smallest_pass,
        largest_pass=span.largest_pass,
        given=job.batch,
    )


def _samples(job: TraceJob, workers: int) -> int:
    """Return the samples of one worker in a step of a job with a fixed batch."""
    return -(-batches_of(job).own // workers)
