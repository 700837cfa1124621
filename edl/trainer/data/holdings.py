"""The leases that a generator has been given, as samples of steps.

Owns: fetching them from the job in order, once, from any thread; which ids a step's share has. Does not own: which step
the script is at (`edl.trainer.data.shards`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edl.core.permutation import samples_at
from edl.errors import InvalidTransition
from edl.protocol.data import DataSpec, Lease, Range

BLOCK = 8192  # samples whose ids are computed at once: a call for one batch would cost more than its samples

Ids = NDArray[np.int64]


class Feed(Protocol):
    """What a generator needs of its job. Called from whichever thread pulls the generator."""

    def open(self, spec: DataSpec) -> None:
        """Say what is trained on, at the beginning of each pass: the first time, again, or with more epochs.

        Raises UsageError if the job trains on something else.
        """

    def next_lease(self, after: int = 0, *, wait: bool = True) -> Lease | None:
        """The lease after number `after`; waits for it, with a bound, and raises when the job or this worker is over.

        None: nothing is left to be leased of all epochs that were asked for (by this worker's last `open` at least),
        and this worker has committed the last step that has data. Before that, a fault may yet bring samples back.
        Without `wait`, None says no more than that the lease is not here.
        """

    def hand_out(self, lease: Lease, step: int) -> bool:
        """The samples that `lease` gives `step` are about to be handed out. False: not as it is, or not yet."""

    def renewed(self, leases: Sequence[Lease], step: int, *, wait: bool) -> tuple[Lease, ...] | None:
        """`leases` as they are now, without those that were taken back. None: what they give `step` is not decided.
        Waits for it a while with `wait`, and raises when the job or this worker is over.
        """

    def rehearsing(self) -> bool:
        """This worker is a newcomer, and its first mini-batch does not count."""

    def loaded(self, nanoseconds: int) -> None:
        """So long the script has just waited for samples."""

    def step(self) -> int:
        """The step that is being worked on: one more than this worker has committed."""


@dataclass(frozen=True, slots=True)
class Block:
    """Ids of the samples of some steps of one lease."""

    lease: Lease
    after_step: int
    until_step: int
    ids: Ids

    def of(self, step: int) -> Ids:
        """A copy, for a script to keep."""
        first = (step - 1 - self.after_step) * self.lease.batch
        return self.ids[first : first + self.lease.batch].copy()


class Holdings:
    """Leases not yet trained, in order. Readers see a tuple that is replaced, never changed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._fetching = threading.Lock()
        self._leases: tuple[Lease, ...] = ()
        self.block: Block | None = None  # the newest that samples were taken of

    @property
    def newest(self) -> Lease | None:
        return self._leases[-1] if self._leases else None

    @property
    def trained_step(self) -> int | None:
        """What this worker has committed; None before it holds anything."""
        leases = self._leases
        return max(self._feed.step() - 1, leases[0].after_step) if leases else None

    def at(self, step: int) -> Lease | None:
        """The lease that gives `step` its share."""
        return next((lease for lease in self._leases if lease.after_step < step <= lease.until_step), None)

    def fetch(self, newest: Lease | None, *, wait: bool = True) -> bool:
        """Get the lease after `newest`, which was the newest when the caller looked. False: none comes (or is here)."""
        with self._fetching:
            if self.newest is not newest:
                return True
            lease = self._feed.next_lease(0 if newest is None else newest.number, wait=wait)
            if lease is None:
                return False
            if newest is not None and (lease.number, lease.after_step) != (newest.number + 1, newest.until_step):
                raise InvalidTransition(newest, f"leases of a worker have no gaps (I7), but {lease} came next")
            before = self._feed.step() - 1
            self._leases = (*(one for one in self._leases if one.until_step >= before), lease)
            return True

    def renew(self, step: int, *, wait: bool) -> bool:
        """What is held may be taken back or cut anew. False: that is not decided yet, as far as `step` goes."""
        with self._fetching:
            leases = self._feed.renewed(self._leases, step, wait=wait)
            self._leases = self._leases if leases is None else leases
            return leases is not None

    def ids(self, spec: DataSpec, lease: Lease, step: int) -> Ids:
        """The samples that `lease` gives `step`."""
        block = self.block
        if block is None or block.lease is not lease or not block.after_step < step <= block.until_step:
            block = self.block = _block(spec, lease, step - 1)
        return block.of(step)


def first_ids(spec: DataSpec, epoch: int, count: int) -> Ids:
    """`count` samples from the beginning of an epoch's order, again from there if it has fewer."""
    return np.resize(samples_at(spec, Range(epoch, 0, min(count, spec.total))), count)


def _block(spec: DataSpec, lease: Lease, after_step: int) -> Block:
    until_step = min(lease.until_step, after_step + max(1, BLOCK // max(1, lease.batch)))
    parts = [samples_at(spec, piece) for piece in lease.between(after_step, until_step)]
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return Block(lease, after_step, until_step, ids)
