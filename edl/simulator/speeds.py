"""What policies are told of jobs' speeds: the truth, or what an analyzer makes of what the jobs report.

The analyzer hears a simulated job as it would a live one: how long the steps took that it made, and no more.
"""

from __future__ import annotations

from typing import Protocol

from edl.cluster.views import Speed
from edl.simulator.life import Life
from edl.simulator.trace import TrueSpeed


class Speeds(Protocol):
    """Of all jobs of a cluster."""

    def begin(self, life: Life) -> None:
        """A job has come."""

    def hear(self, life: Life) -> None:
        """A job has run for a while as it does now."""

    def end(self, life: Life) -> None:
        """A job is over."""

    def speed(self, life: Life) -> Speed: ...


class Truth:
    """An oracle."""

    def begin(self, life: Life) -> None:
        """It knows all jobs."""

    def hear(self, life: Life) -> None:
        """It knew."""

    def end(self, life: Life) -> None:
        """It keeps nothing."""

    def speed(self, life: Life) -> Speed:
        return TrueSpeed(life.job.course, life.done, life.job.batch)
