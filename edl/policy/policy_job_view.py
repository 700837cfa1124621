"""The view of a job that a policy gets, and the decision that it may make."""

from __future__ import annotations

from typing import Protocol

import msgspec

from edl.protocol.tally import Rate


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of the ring."""

    id: str
    rank: int
    host: str
    pace: float = 1.0  # how fast it computes, against the median of all; a moving average
    compute_s: float = 0.0  # of a step: neither waiting for peers nor for data
    wait_s: float = 0.0  # of a step: for peers, and for the transfer itself
    data_s: float = 0.0  # of a step: waiting for its samples
    cpu: float = 0.0  # cores that its trainer uses
    memory: int = 0  # bytes that its trainer holds
    reported: dict[str, float] = {}  # the script's own figures: `edl.report(loss=0.3)`


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as it was measured."""

    now: float  # seconds since the job started
    step: int
    size: int  # workers in the ring
    minimum: int
    maximum: int  # 0: as many as there are
    rates: tuple[Rate, ...] = ()  # measured rate of each size, smallest size first; that of the present size is growing
    samples_left: int | None = None  # of all epochs asked for; None: the number of epochs is unknown
    workers: tuple[WorkerView, ...] = ()
    epoch: int = 0

    @property
    def rate(self) -> Rate | None:
        """The measured rate of the present size."""
        return next((rate for rate in self.rates if rate.size == self.size), None)

    def reported(self, name: str) -> float | None:
        """Return the mean of a figure over the workers that report it."""
        figures = [worker.reported[name] for worker in self.workers if name in worker.reported]
        return sum(figures) / len(figures) if figures else None

    def bounded(self, size: int) -> int:
        """Return `size`, or the nearest size that the job may have."""
        most = self.maximum or size
        return max(self.minimum, 1, min(size, most))


class Decision(msgspec.Struct, frozen=True):
    """A policy's decision. With the present size and no worker to replace, it changes nothing."""

    size: int
    reason: str
    replace: tuple[str, ...] = ()  # workers to replace by new ones
    numbers: dict[str, float] = {}  # numbers on which the reason rests
    shares: dict[str, float] = {}  # of the batch, by worker, in any unit: a worker without an entry takes 1.0


class Policy(Protocol):
    """The interface of a policy, which decides how many workers a job should have. A user's own class has this one
    method.
    """

    def decide(self, view: View) -> Decision | None:
        """Return a decision, or None for no opinion. It is called again and again while no change of the job is under
        way.
        """
