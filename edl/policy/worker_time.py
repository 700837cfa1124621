"""The use of each worker's time in a ring, from the usage that daemons report now and then.

Owns: the difference between each worker's usage and its last one, for all workers of a ring at once. Does not own: what
follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from edl.policy.policy_job_view import WorkerView
from edl.policy.stragglers import Spent
from edl.protocol.tally import Usage


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
