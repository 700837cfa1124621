"""What a policy is shown of a job, and what it may decide."""

from __future__ import annotations

from typing import Protocol

import msgspec

from edl.protocol.figures import Rate


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of the ring."""

    id: str
    rank: int
    host: str
    pace: float = 1.0  # how fast it computes, against the median of all; a moving average
    compute_s: float = 0.0  # of a step: neither waiting for peers nor for data
    wait_s: float = 0.0  # of a step: for peers, and for the transfer itself
    data_s: float = 0.0  # of a step: for its samples
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
    rates: tuple[Rate, ...] = ()  # what each size was measured at, smallest size first; of the present one, so far
    samples_left: int | None = None  # of all epochs asked for; None: it is not known how many will be
    workers: tuple[WorkerView, ...] = ()
    epoch: int = 0

    @property
    def rate(self) -> Rate | None:
        """What was measured at the present size."""
        return next((rate for rate in self.rates if rate.size == self.size), None)

    def reported(self, name: str) -> float | None:
        """Mean over the workers that report such a figure."""
        figures = [worker.reported[name] for worker in self.workers if name in worker.reported]
        return sum(figures) / len(figures) if figures else None

    def bounded(self, size: int) -> int:
        """`size`, or the nearest that the job may have."""
        most = self.maximum or size
        return max(self.minimum, 1, min(size, most))


class Decision(msgspec.Struct, frozen=True):
    """What a policy wants. With the present size and no worker to replace: that all stays as it is."""

    size: int
    reason: str
    replace: tuple[str, ...] = ()  # workers for each of which another one shall come
    numbers: dict[str, float] = {}  # that the reason rests on
    shares: dict[str, float] = {}  # of the batch, by worker, in any unit: those who are not named take 1.0


class Policy(Protocol):
    """Decides how many workers a job should have. A user's own class has this one method."""

    def decide(self, view: View) -> Decision | None:
        """Called again and again while the job trains at rest; None: no opinion."""
