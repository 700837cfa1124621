"""The part of a worker's samples that one of its processes takes, of several.

Owns: how a step's samples are divided among the processes of one dimension of a mesh. Does not own: which samples a
worker has (`edl.trainer.data.shards`), nor the mesh, which is the script's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edl.core.data.batching import even_shares, microbatches
from edl.errors import UsageError
from edl.trainer.data.sample_ids import Ids

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
