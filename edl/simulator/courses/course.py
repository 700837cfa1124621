"""What a simulated job's training is made of. One course serves all jobs that train alike."""

from __future__ import annotations

from typing import Protocol

import msgspec

from edl.cluster.views import Aim, Rates

Shape = tuple[int, ...]  # workers on each node that the job has some on, in the order in which it was given them


class Step(msgspec.Struct, frozen=True):
    """One step of a job, as it truly is there."""

    seconds: float
    batch: int  # of all workers together; 0: the trace does not say
    pass_batch: int = 0  # samples of one worker at a time
    pass_s: float = 0.0  # the last pass of a step, with all that it waits for
    sync_s: float = 0.0  # that it waits for its peers


class GradientNoise(msgspec.Struct, frozen=True):
    """Of a step's gradients."""

    sqr: float
    var: float


class BatchSpan(msgspec.Struct, frozen=True):
    """Which batches a job may have: of all workers together, and of one worker at a time."""

    own: int  # that it was written for: work is counted in steps of it
    smallest: int
    largest: int
    smallest_pass: int
    largest_pass: int


class Course(Protocol):
    """The training of a whole job: `total` work. A batch of 0 is the job's own."""

    @property
    def total(self) -> float: ...

    @property
    def span(self) -> BatchSpan | None:
        """None: its batch is fixed."""

    def step(self, shape: Shape, batch: int) -> Step:
        """With workers like that, at that batch, or the nearest that so many workers can have."""

    def steps(self, done: float, batch: int) -> float:
        """How many steps at that batch it takes from the beginning until so much work is done."""

    def done(self, steps: float, batch: int) -> float:
        """The inverse."""

    def noise(self, done: float, batch: int) -> GradientNoise | None:
        """None: the trace does not say."""

    def rates(self, done: float, most: int, devices: int, aim: Aim, batch: int) -> Rates:
        """The truth at that point, with 1 to `most` workers. `batch`: what its owner asked for."""
