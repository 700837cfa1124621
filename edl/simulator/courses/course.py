"""The course of a simulated job's training. All jobs that train alike share a course."""

from __future__ import annotations

from typing import Protocol

import msgspec

from edl.cluster.views import Aim, Rates

Shape = tuple[int, ...]  # workers on each node of the job, in the order in which the job got the nodes


class Step(msgspec.Struct, frozen=True):
    """A step of a job, with its true times."""

    seconds: float
    batch: int  # of all workers together; 0: the trace does not say
    pass_batch: int = 0  # samples of one worker at a time
    pass_s: float = 0.0  # the last pass of a step, including the wait for peers
    sync_s: float = 0.0  # the part of `pass_s` in which it waits for peers


class GradientNoise(msgspec.Struct, frozen=True):
    """The statistics of a step's gradients."""

    sqr: float
    var: float


class BatchSpan(msgspec.Struct, frozen=True):
    """The batches that a job may have: of all workers together, and of one worker at a time."""

    own: int  # the batch that the job was written for: work is counted in steps of this batch
    smallest: int
    largest: int
    smallest_pass: int
    largest_pass: int


class Course(Protocol):
    """The training of a whole job, which is `total` work. A batch of 0 is the job's own."""

    @property
    def total(self) -> float: ...

    @property
    def span(self) -> BatchSpan | None:
        """The batches that the job may have; None if its batch is fixed."""

    def step(self, shape: Shape, batch: int) -> Step:
        """Return the step of workers placed in `shape`, at `batch` or the nearest batch that they can have."""

    def steps(self, done: float, batch: int) -> float:
        """Return the number of steps at that batch from the beginning until `done` work is done."""

    def done(self, steps: float, batch: int) -> float:
        """Return the work done after that many steps; the inverse of `steps`."""

    def noise(self, done: float, batch: int) -> GradientNoise | None:
        """Return the gradients' statistics; None if the trace has none."""

    def rates(self, done: float, most: int, devices: int, aim: Aim, batch: int) -> Rates:
        """Return the true rates at that point, with 1 to `most` workers. `batch` is the batch that the job's owner
        asked for.
        """
