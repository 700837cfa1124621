"""Choose parts of a step that other workers compute a second time, and judge the workers whose digests differ.

In a step that is due, each worker computes parts of its successor in the ring again, so that all take as much longer.
Who computes what follows from seed and step alone. Where two digests of a part differ, the step is computed once more,
and a third worker, the predecessor of the one that had checked it, computes that part, too: the one that it does not
agree with had computed wrongly the first time. Of two workers either may have.

Owns: that rule. Does not own: computing parts and sending digests (`edl.trainer.recomputed_parts`), nor what becomes of
a worker that is wrong (`edl.core.worker.divergence_finder`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl.protocol.data_nouns import held_by

MILLION: Final = 1_000_000


class Recomputed(NamedTuple):
    virtual: int
    holder: int  # rank of the worker whose part it is
    checker: int  # rank of the one that computes it, too
    third: int | None  # rank of the one that computes it where both differ; None: in a ring of two


class PartDigests(NamedTuple):
    """The digests of a part; 0: not computed."""

    own: int = 0
    again: int = 0
    third: int = 0

    @property
    def is_contested(self) -> bool:
        return bool(self.own and self.again) and self.own != self.again


@dataclass(frozen=True, slots=True)
class ComputeVerdict:
    """Workers are named by rank, and all workers come to the same verdict."""

    virtual: int  # the first part that came out otherwise
    wrong: tuple[int, ...]  # a third worker has shown that these are
    suspects: tuple[int, ...]  # one of these is, and which is not known
    persists: bool  # computed once more, they differ still


def _drawn(seed: int, step: int, what: int) -> int:
    words = struct.pack("<Qqq", seed % 2**64, step, what)
    return int.from_bytes(hashlib.blake2b(words, digest_size=8, person=b"edl check").digest(), "little")


def rounds(seed: int, step: int, virtual: int, size: int, share: float) -> int:
    """Return how many parts each worker computes again in `step`, so that it is `share` of all parts over many steps.

    Steps that have any are as far apart as can be.
    """
    if size < 2:
        return 0
    whole = size * MILLION  # parts of a million that one more for each worker stands for
    a_step, phase = round(share * MILLION) * virtual, _drawn(seed, 0, -1) % whole
    return (step * a_step + phase) // whole - ((step - 1) * a_step + phase) // whole


def recomputed(seed: int, step: int, virtual: int, size: int, count: int) -> list[Recomputed]:
    """Choose `count` parts of each worker; none in a ring of one."""
    found = []
    for rank in range(size if count and size > 1 else 0):
        first, last = held_by(rank, size, virtual)
        held = last - first
        begin = _drawn(seed, step, rank) % held if held else 0
        checker, third = (rank - 1) % size, (rank - 2) % size if size > 2 else None
        found += [
            Recomputed(first + (begin + number) % held, rank, checker, third) for number in range(min(count, held))
        ]
    return found


def contested(parts: Sequence[Recomputed], digests: Mapping[int, PartDigests]) -> list[Recomputed]:
    return [one for one in parts if digests.get(one.virtual, PartDigests()).is_contested]


def verdict(
    parts: Sequence[Recomputed], first: Mapping[int, PartDigests], then: Mapping[int, PartDigests]
) -> ComputeVerdict | None:
    """Judge by the digests of the `first` try and those of the one after it; None: none differed at first."""
    doubted = contested(parts, first)
    if not doubted:
        return None
    wrong: set[int] = set()
    suspects: set[int] = set()
    for one in doubted:
        own, again, _ = first[one.virtual]
        third = then.get(one.virtual, PartDigests()).third
        if third and third in {own, again}:
            wrong.add(one.checker if third == own else one.holder)
        else:
            suspects |= {one.holder, one.checker}
    return ComputeVerdict(
        doubted[0].virtual, tuple(sorted(wrong)), tuple(sorted(suspects - wrong)), bool(contested(doubted, then))
    )
