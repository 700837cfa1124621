"""The parts of one step that are computed a second time: what this worker computes besides, and what all have found.

Owns: the digests of one step, and their form among the numbers that are added up over the ring. Does not own: which
parts these are and what follows (`edl.core.worker.compute_check`), nor computing them (`edl.trainer.virtual_steps`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from edl.core.worker.compute_check import ComputeVerdict, PartDigests, Recomputed, contested, verdict

ROLES: Final = 3  # of a part: computed by its own worker, by another, by a third
WORDS: Final = 2  # of 32 bits, of a digest
NONE: Final = PartDigests()


class StepTrial:
    """The tries of one step to compute its parts, on one worker."""

    def __init__(
        self,
        parts: Sequence[Recomputed],
        rank: int,
        virtual: int,
        judge: Callable[[ComputeVerdict], None],
        if_not_finite: Sequence[Recomputed] = (),
    ) -> None:
        """`virtual`: how many virtual workers have a place among the numbers. `judge` acts on what is found.
        `if_not_finite`: what is computed again where the sums are not finite, as after a flipped exponent: once all
        workers have taken over such sums, none differs from the others any more.
        """
        self._if_not_finite = if_not_finite
        self.length = virtual * ROLES * WORDS
        self._rank, self._judge = rank, judge
        self._take(parts)
        self._mine: dict[int, PartDigests] = {}
        self._first: dict[int, PartDigests] | None = None  # what all have found in the first try, once they differ

    def _take(self, parts: Sequence[Recomputed]) -> None:
        self._parts, self._of = parts, {one.virtual for one in parts}

    def is_due(self, virtual: int) -> bool:
        return virtual in self._of

    @property
    def more(self) -> list[int]:
        """Return the virtual workers whose parts this worker computes besides its own, in this try."""
        checked = [one.virtual for one in self._parts if one.checker == self._rank]
        if self._first is None:
            return checked
        return [*checked, *(one.virtual for one in contested(self._parts, self._first) if one.third == self._rank)]

    def note(self, virtual: int, digest: int, *, own: bool) -> None:
        if virtual in self._of:
            checks = {one.virtual for one in self._parts if one.checker == self._rank}
            role = "own" if own else "again" if virtual in checks else "third"
            self._mine[virtual] = self._mine.get(virtual, NONE)._replace(**{role: digest or 1})

    def told(self) -> list[int]:
        """Return what this worker has found, as numbers that are added up over the ring."""
        places = self.length // (ROLES * WORDS)
        digests = [one for virtual in range(places) for one in self._mine.get(virtual, NONE)]
        return list(struct.unpack(f"<{self.length}i", struct.pack(f"<{len(digests)}Q", *digests)))

    def hear(self, told: Sequence[int], *, finite: bool) -> bool:
        """Hear what all have found, and whether their sums are finite. True: the step is to be computed once more.
        `judge` may raise.
        """
        if not self._parts:
            self._take(() if finite else self._if_not_finite)
            return bool(self._parts)
        digests = struct.unpack(f"<{len(told) // WORDS}Q", struct.pack(f"<{len(told)}i", *told))
        heard = {
            number: PartDigests(*digests[number * ROLES : number * ROLES + ROLES])
            for number in range(len(digests) // ROLES)
        }
        if self._first is None:
            if contested(self._parts, heard):
                self._first = heard
            return self._first is not None
        if (found := verdict(self._parts, self._first, heard)) is not None:
            self._judge(found)
        return False


def _unasked(_: ComputeVerdict) -> None: ...


UNCHECKED: Final = StepTrial((), 0, 0, _unasked)  # of a job that computes nothing a second time
