"""A trace: the jobs of a cluster, in the order in which they were submitted."""

from __future__ import annotations

import msgspec

from edl.cluster.views import Aim, Rates
from edl.simulator.change_cost import ChangeCost
from edl.simulator.courses.course import Course


class TraceJob(msgspec.Struct, frozen=True):
    """A job as its trace has it. Times are seconds of the trace's own clock."""

    name: str
    submitted: float
    request: int  # workers that the job's owner asked for
    course: Course
    smallest: int = 1
    largest: int = 1
    batch: int = 0  # batch that the job's owner asked for; 0: the course's own
    user: str = ""
    priority: int = 0
    deadline: float | None = None
    cost: ChangeCost | None = None  # measured cost of the job's changes; None: the cost for all jobs
    row: int = 0  # row of the trace's file, for error messages


class Trace(msgspec.Struct, frozen=True):
    name: str
    jobs: tuple[TraceJob, ...]
    node_size: int | None = None  # most devices on a node that were measured


class TrueSpeed:
    """The true speed of a job, from its course."""

    def __init__(self, course: Course, done: float, batch: int) -> None:
        self._course, self._done, self._batch = course, done, batch

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        return self._course.rates(self._done, most, devices, aim, self._batch)
