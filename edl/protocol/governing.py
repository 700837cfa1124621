"""What a job was started with to govern itself: its size, its batch, its workers' equality; and what is under way."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from edl.protocol.divergence import Checking


class BatchRule(StrEnum):
    """What the batch of a step depends on (`edl.core.batching`)."""

    LOCAL = "fixed-local"
    GLOBAL = "fixed-global"
    TABLE = "function"


class Batching(msgspec.Struct, frozen=True):
    """How large the batch of a step is, at any number of workers."""

    rule: BatchRule = BatchRule.LOCAL
    most: int = 0  # of all workers together; 0: no bound (LOCAL)
    table: tuple[tuple[int, int], ...] = ()  # what the user's function said: (workers, batch of all), ascending

    def __str__(self) -> str:
        return f"{self.rule.value},most={self.most}" if self.most else self.rule.value


class Governing(msgspec.Struct, frozen=True):
    """As its first worker says it; equal for all leaders."""

    autoscale: str = ""  # as `edl run --autoscale` takes it; empty: nobody but people changes the size
    utility: str = ""  # what the file named there holds
    every: int = 10  # steps from one look to the next
    stragglers: str = "off"  # or "tell", "replace", "share"
    batching: Batching = Batching()
    checking: Checking = Checking()


class Recut(msgspec.Struct, frozen=True):
    """Leases are about to be cut anew (`edl.core.recut`): nobody is to read beyond the step `mark`."""

    number: int  # never used twice
    mark: int


class Replacing(msgspec.Struct, frozen=True):
    """Another worker comes for `worker`; then it leaves. Afterwards the job has `size` workers, as before."""

    worker: str
    size: int
