"""Sample ids of leases, and the part of them that one of a worker's processes takes.

Owns: the ids of each step's share, as arrays. Does not own: the leases (`edl.core.worker.lease_buffer`), nor which step
the script is at (`edl.trainer.data.epoch_cursor`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.core.data.batching import even_shares, microbatches
from edl.core.data.permutation import samples_at
from edl.errors import UsageError
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


ONE_DIMENSION = 'one dimension of a mesh of this worker\'s processes, such as mesh["shard"]'


@dataclass(frozen=True, slots=True)
class Among:
    """The place of this process among those that divide the worker's samples. Others take the same as one of these."""

    place: int = 0
    count: int = 1
    group: Any = None  # the process group of these
    members: frozenset[int] = frozenset()  # numbers of these among the processes of the worker

    @classmethod
    def of(cls, mesh: Any) -> Among:
        """Return the place in `mesh`, a `DeviceMesh` of one dimension; None: all processes take all samples. Raises
        UsageError.
        """
        if mesh is None:
            return cls()
        if getattr(mesh, "ndim", 0) != 1 or not hasattr(mesh, "get_local_rank"):
            raise UsageError(f"among={mesh!r}: must be {ONE_DIMENSION}")
        return cls(mesh.get_local_rank(), mesh.size(), mesh.get_group(), frozenset(mesh.mesh.flatten().tolist()))

    def check(self, samples: int) -> None:
        """Raise UsageError for batches that do not divide evenly."""
        if samples % self.count:
            raise UsageError(
                f"batches of {samples} samples do not divide among {self.count} processes: take a multiple of "
                f"{self.count}"
            )

    def range(self, samples: int) -> range:
        """Return which of so many samples are this process's: the first processes have one more where some are left."""
        each, more = divmod(samples, self.count)
        begin = self.place * each + min(self.place, more)
        return range(begin, begin + each + (self.place < more))

    def part(self, ids: Ids) -> Ids:
        """Return this process's part; where none is left for it, a sample that stands in and weighs nothing."""
        mine = self.range(len(ids))
        return ids[mine.start : mine.stop] if mine else ids[:1]

    def microbatches(self, samples: int, mine: int, most: int) -> tuple[int, ...]:
        """Split `mine`, this process's samples of so many, into as many microbatches as the largest part has: a forward
        pass is one of all processes. 0: a sample stands in that weighs nothing.
        """
        if self.count == 1:
            return microbatches(mine, most)
        each = microbatches(max(mine, -(-samples // self.count)), most)
        return even_shares(mine, len(each))

    def weight(self, samples: int) -> float:
        """Return what to multiply the mean loss of this process's part by, so that the mean over all processes is that
        of all samples: 1.0 where parts are even.
        """
        return len(self.range(samples)) * self.count / samples if samples else 1.0
