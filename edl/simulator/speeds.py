"""What policies are told of jobs' speeds: the truth, or what an analyzer makes of what the jobs report.

The analyzer hears a simulated job as it would a live one: how long the steps took that it made, and no more.
"""

from __future__ import annotations

from typing import Protocol

from edl.cluster.views import Speed
from edl.simulator.simulated_job import SimulatedJob
from edl.simulator.trace import TrueSpeed


class Speeds(Protocol):
    """Of all jobs of a cluster."""

    def begin(self, one: SimulatedJob) -> None:
        """A job has come."""

    def hear(self, one: SimulatedJob) -> None:
        """A job has run for a while as it does now."""

    def end(self, one: SimulatedJob) -> None:
        """A job is over."""

    def speed(self, one: SimulatedJob) -> Speed: ...


class Truth:
    """An oracle."""

    def begin(self, one: SimulatedJob) -> None:
        """It knows all jobs."""

    def hear(self, one: SimulatedJob) -> None:
        """It knew."""

    def end(self, one: SimulatedJob) -> None:
        """It keeps nothing."""

    def speed(self, one: SimulatedJob) -> Speed:
        return TrueSpeed(one.job.course, one.done, one.job.batch)
