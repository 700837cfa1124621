"""The throughput of each size of a job, and the use of each worker's time, from what workers report to the leader.

Owns: batches and samples per second of the sizes seen so far, the newest visit of each; and the difference between each
worker's usage and its last one, for all workers of a ring at once. Does not own: clocks, nor decisions (`edl.policy`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from edl.policy.policy_job_view import WorkerView
from edl.policy.stragglers import Spent
from edl.protocol.tally import Rate, Usage

SETTLE_STEPS: Final = 2  # first steps of a generation, which the switch and empty pipelines slow down: not measured
WINDOW_S: Final = 60.0  # older observations say little about the present
FEWEST: Final = 10  # least batches of a visit that is remembered

Point = tuple[float, int, int]  # time, step, samples trained until then


class Meter:
    """Observations of the job may come as seldom as once a second."""

    def __init__(self, known: tuple[Rate, ...] = ()) -> None:
        self._known = {rate.size: rate for rate in known}
        self._generation = 0
        self._began = 0  # step after which the generation took over
        self._size = 0
        self._points: deque[Point] = deque()

    def look(self, generation: int, size: int, point: Point) -> None:
        """Take an observation of the ring of `generation` at `point`. An observation without news is ignored."""
        at, step, _ = point
        if generation != self._generation:
            self._remember()
            self._generation, self._size, self._began = generation, size, step
            self._points.clear()
        if step < self._began + SETTLE_STEPS or (self._points and step <= self._points[-1][1]):
            return
        self._points.append(point)
        while at - self._points[0][0] > WINDOW_S and len(self._points) > 2:
            self._points.popleft()

    @property
    def present(self) -> Rate | None:
        """Return the rate of the present generation, so far."""
        if len(self._points) < 2:
            return None
        (began, first, before), (ended, last, after) = self._points[0], self._points[-1]
        return Rate(self._size, last - first, max(0, after - before), ended - began)

    @property
    def rates(self) -> tuple[Rate, ...]:
        """Return the rate of each size in its newest visit that was long enough, smallest size first."""
        known = dict(self._known)
        present = self.present
        if present is not None and (present.size not in known or present.batches >= FEWEST):
            known[present.size] = present
        return tuple(known[size] for size in sorted(known))

    def _remember(self) -> None:
        present = self.present
        if present is not None and present.batches >= FEWEST:
            self._known[present.size] = present


class Seated(msgspec.Struct, frozen=True):
    """A worker of the ring, and its newest usage."""

    worker: str
    rank: int
    host: str
    usage: Usage


class WorkerTimes:
    """The sheets of one ring at a time."""

    def __init__(self) -> None:
        self._before: dict[str, Usage] = {}
        self.batches = 0  # batches of the newest sheet
        self.spent: tuple[Spent, ...] = ()
        self._views: tuple[WorkerView, ...] = ()

    def begin(self) -> None:
        """Begin with another ring: time that a switch took is no worker's work."""
        self._before = {}

    def take(self, ring: Sequence[Seated]) -> bool:
        """Return True if all workers have trained since the newest sheet: then there is a new one."""
        if any(one.worker not in self._before or one.usage.at < self._before[one.worker].at for one in ring):
            self._before = {one.worker: one.usage for one in ring}
            return False
        batches = min((one.usage.step - self._before[one.worker].step for one in ring), default=0)
        if batches <= 0:
            return False
        pairs = [(one, self._before[one.worker]) for one in ring]
        self.batches, self.spent = batches, tuple(_spent(one, before) for one, before in pairs)
        self._views = tuple(_view(*pair, spent) for pair, spent in zip(pairs, self.spent, strict=True))
        self._before = {one.worker: one.usage for one in ring}
        return True

    def views(self, paces: Mapping[str, float]) -> tuple[WorkerView, ...]:
        """Return the workers as the newest sheet shows them."""
        return tuple(msgspec.structs.replace(view, pace=paces.get(view.id, 1.0)) for view in self._views)


def _spent(one: Seated, before: Usage) -> Spent:
    after = one.usage
    batches = after.step - before.step
    wait_s, data_s = after.waited_s - before.waited_s, after.loaded_s - before.loaded_s
    compute_s = max(0.0, after.at - before.at - wait_s - data_s)
    return Spent(one.worker, one.host, compute_s / batches, data_s / batches, wait_s / batches)


def _view(one: Seated, before: Usage, spent: Spent) -> WorkerView:
    elapsed_s = one.usage.at - before.at
    return WorkerView(
        id=one.worker,
        rank=one.rank,
        host=one.host,
        compute_s=spent.compute_s,
        wait_s=spent.wait_s,
        data_s=spent.data_s,
        cpu=(one.usage.cpu_s - before.cpu_s) / elapsed_s if elapsed_s > 0 else 0.0,
        memory=one.usage.memory,
        reported=one.usage.reported,
    )
