"""The speeds of jobs that policies see: the true speeds, or those that an analyzer fits to the jobs' reports.

The analyzer gets of a simulated job only what a live one would report: the time of the steps that it made.
"""

from __future__ import annotations

from typing import Protocol

from edl.cluster.views import Speed
from edl.simulator.simulated_job import SimulatedJob
from edl.simulator.trace import TrueSpeed


class Speeds(Protocol):
    """The speeds of all jobs of a cluster."""

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
