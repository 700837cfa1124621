"""A stream in a simulated job: shards of lengths that only their readers find out, and each worker's reader.

Owns: what there is to find, and when a worker finds it. Does not own: which worker reads what (`edl.core`'s rules).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from edl.core.worker.worker_inputs import StreamRead
from edl.protocol.data_nouns import ITEMS, DataSpec, Mark, ShardPart
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

AHEAD = 60  # items of a shard that a reader finds beyond what is leased
BLOCK = 5  # items between two marks
READ_S = 0.004


class SimStream:
    """The truth of a stream."""

    def __init__(self, seed: int, items: int, shards: int) -> None:
        chance = random.Random(f"stream {seed}")
        weights = [chance.choice((0.0, 0.2, 1.0, 1.0, 3.0)) for _ in range(shards)]
        total = sum(weights) or 1.0
        self.lengths = [int(items * weight / total) for weight in weights]

    def samples(self, epochs: int) -> set[tuple[int, int]]:
        places = [shard * ITEMS + item for shard, length in enumerate(self.lengths) for item in range(length)]
        return {(epoch, place) for epoch in range(epochs) for place in places}


def of_stream(spec: DataSpec, source: random.Random) -> DataSpec:
    """Return the same data as a stream."""
    shards = source.randint(1, 8)
    at_once = source.choice((0, 1, 2, 8))
    return msgspec.structs.replace(spec, total=shards * ITEMS, shards=shards, at_once=at_once, by_sample=False)


class SimReaders:
    """The readers of all workers of a job."""

    def __init__(self, job: SimJob, seed: int) -> None:
        self.job = job
        self.random = random.Random(f"readers {seed}")
        self._reads: set[str] = set()

    def begin(self, worker: SimWorker) -> None:
        if self.job.stream is not None and worker.id not in self._reads:
            self._reads.add(worker.id)
            self.job.after(READ_S, self._read, worker, {})

    def _read(self, worker: SimWorker, found: dict[int, int]) -> None:
        """Read on in some of the parts that the worker holds, and tell what is new."""
        if not worker.alive:
            return
        if not worker.stalled:
            told = tuple(self._part(one, found) for one in worker.leases.parts if one.holder == worker.id)
            if told and told != worker.machine.status.stream:
                self.job.shells.tell(worker, StreamRead(told))
        self.job.after(READ_S * (0.3 + 3 * self.random.random()), self._read, worker, found)

    def _part(self, one: ShardPart, found: dict[int, int]) -> ShardPart:
        assert self.job.stream is not None
        length = self.job.stream.lengths[one.part % len(self.job.stream.lengths)]
        base = max((mark.item for mark in one.marks if mark.item <= one.next), default=0)
        before = max(found.get(one.part, 0), base)
        now = before if before > one.next + AHEAD else min(length, before + self.random.randint(0, 40))
        found[one.part] = now
        marks = tuple(Mark(item, b"") for item in {base, now - now % BLOCK} if item <= now)
        return ShardPart(
            one.part, known=now, ended=now == length, marks=tuple(sorted(marks, key=lambda mark: mark.item))
        )
