"""The nouns of the data: what a script trains on, and who holds which part of it.

A *position* is a place in an epoch's own order; which sample stands there is a permutation of (seed, epoch). All the
bookkeeping is in positions, so shuffling costs it nothing.
"""

from __future__ import annotations

import msgspec


class DataSpec(msgspec.Struct, frozen=True):
    """What a script asked of `elastic_shard_generator`. Equal on all workers of a job, or the job fails with the difference."""

    total: int  # samples in one epoch
    epochs: int  # how many passes are wanted; may grow while the job runs, never shrink
    batch: int  # samples that one worker takes in one full step
    shuffle: bool = False
    seed: int = 0
    whole_epochs: bool = True  # True: a batch never crosses the end of an epoch. False: one stream of samples


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Positions start..stop-1 of one epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class Lease(msgspec.Struct, frozen=True):
    """Samples in one worker's hands, for the steps first_step+1 .. first_step+steps.

    The worker takes `batch` samples a step in the order of `ranges`; only the last step of a lease may find fewer,
    or none at all (then the worker takes part in the all-reduce with weight zero).
    """

    number: int  # 1, 2, 3, ... per worker without gaps
    after_step: int  # the first batch of this lease is trained in step after_step + 1
    steps: int
    batch: int
    ranges: tuple[Range, ...]

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.ranges)


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """All workers together train `samples` in each of the steps after the one before's `until_step`, up to this one's."""

    until_step: int
    samples: int


class DataCounts(msgspec.Struct, frozen=True):
    """The epoch in progress, as `edl status` shows it. unassigned + leased + trained == total (I6)."""

    epoch: int
    total: int
    trained: int
    leased: int
    unassigned: int
