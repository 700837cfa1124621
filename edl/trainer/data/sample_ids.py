"""Sample ids of leases.

Owns: the ids of each step's share, as arrays. Does not own: the leases (`edl.core.worker.lease_buffer`), nor which step
the script is at (`edl.trainer.data.epoch_cursor`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edl.core.data.permutation import samples_at
from edl.protocol.data_nouns import DataSpec, Lease, Range

BLOCK = 8192  # samples whose ids are computed at once: a call for one batch would cost more than its samples

NO_SAMPLE = -1  # in the place of a stream's samples, where any will do

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Block:
    lease: Lease
    after_step: int
    until_step: int
    ids: Ids

    def of(self, step: int) -> Ids:
        """Return a copy, for a script to keep."""
        first = (step - 1 - self.after_step) * self.lease.batch
        return self.ids[first : first + self.lease.batch].copy()


class SampleIds:
    def __init__(self) -> None:
        self.block: Block | None = None  # the newest that samples were taken of

    def of(self, spec: DataSpec, lease: Lease, step: int) -> Ids:
        """Return the samples that `lease` gives `step`."""
        if lease.part is not None:  # another piece in each step
            return _ids(spec, lease, step - 1, step)
        block = self.block
        if block is None or block.lease is not lease or not block.after_step < step <= block.until_step:
            block = self.block = _block(spec, lease, step - 1)
        return block.of(step)


def first_ids(spec: DataSpec, epoch: int, count: int) -> Ids:
    """Return `count` samples from the begin of an epoch's order, repeated if it has fewer; of a stream, no sample's."""
    if spec.shards:
        return np.full(count, NO_SAMPLE, np.int64)
    return np.resize(samples_at(spec, Range(epoch, 0, min(count, spec.total))), count)


def _block(spec: DataSpec, lease: Lease, after_step: int) -> Block:
    until_step = min(lease.until_step, after_step + max(1, BLOCK // max(1, lease.batch)))
    return Block(lease, after_step, until_step, _ids(spec, lease, after_step, until_step))


def _ids(spec: DataSpec, lease: Lease, after_step: int, until_step: int) -> Ids:
    parts = [samples_at(spec, piece) for piece in lease.between(after_step, until_step)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
