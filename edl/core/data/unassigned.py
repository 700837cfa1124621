"""The samples that no worker holds: what was returned, then all that was never leased.

Owns: the order in which samples are leased, without memory per sample. Does not own: to whom
(`edl.core.data.sample_ledger`).

A sample's *place* is epoch * total + position: one line of places for all epochs, on which what is unassigned is a few
returned pieces, sorted, and everything from the frontier on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from edl.core.data.rounds import deal
from edl.protocol.data_nouns import Range, cut

Piece = tuple[int, int]  # places from..to-1


class Pool(Protocol):
    """The samples that no worker holds, in the order in which they are leased."""

    epochs: int  # those of later ones are not leased yet

    @property
    def first_epoch(self) -> int: ...  # with samples left; `epochs` when none are

    @property
    def handed_out(self) -> int: ...  # samples that were taken and did not come back

    def count(self, until_epoch: int) -> int: ...  # samples of all epochs up to and with it

    def give_back(self, ranges: Iterable[Range]) -> None: ...


class Unassigned:
    """Places to lease, lowest first. Returned pieces always lie before the frontier, so they go first by themselves."""

    def __init__(self, total: int, epochs: int, frontier: int = 0, returned: Iterable[Piece] = ()) -> None:
        self.total = total
        self.epochs = epochs
        self.frontier = frontier
        self.returned: tuple[Piece, ...] = tuple(returned)

    @property
    def first_epoch(self) -> int:
        """Return the epoch of the sample to be leased next; `epochs` when nothing is left."""
        return (self.returned[0][0] if self.returned else self.frontier) // self.total

    @property
    def handed_out(self) -> int:
        return self.frontier - sum(stop - start for start, stop in self.returned)

    def count(self, until_epoch: int) -> int:
        """Count the samples of all epochs up to and with `until_epoch`."""
        end = self._end(until_epoch)
        fresh = max(0, end - self.frontier)
        return fresh + sum(max(0, min(stop, end) - start) for start, stop in self.returned)

    def count_in(self, epoch: int) -> int:
        return self.count(epoch) - self.count(epoch - 1)

    def take(self, count: int) -> tuple[Range, ...]:
        """Take the next `count` samples; the caller has made sure that there are so many."""
        taken: list[Piece] = []
        kept: list[Piece] = []
        for start, stop in self.returned:
            cut = min(stop, start + count)
            count -= cut - start
            taken += [(start, cut)] if start < cut else []
            kept += [(cut, stop)] if cut < stop else []
        self.returned = tuple(kept)
        if count:
            taken.append((self.frontier, self.frontier + count))
            self.frontier += count
        return tuple(piece for start, stop in taken for piece in self._ranges(start, stop))

    def deal(self, counts: Sequence[int], taken: Sequence[int]) -> list[tuple[Range, ...]]:
        """Deal the next sum(counts) samples as runs of so many, one after the other; take the first `taken` of each
        run.
        """
        runs = deal(self.take(sum(counts)), counts)
        lengths = [*zip(runs, counts, taken, strict=True)]
        self.give_back(piece for run, count, first in lengths for piece in cut(run, first, count))
        return [cut(run, 0, first) for run, _, first in lengths]

    def give_back(self, ranges: Iterable[Range]) -> None:
        """Return samples that were taken, and that no worker will train as it is."""
        back = ((piece.epoch * self.total + piece.start, piece.epoch * self.total + piece.stop) for piece in ranges)
        self.returned = merged([*self.returned, *back])
        if self.returned and self.returned[-1][1] == self.frontier:
            self.frontier = self.returned[-1][0]
            self.returned = self.returned[:-1]

    def _end(self, until_epoch: int) -> int:
        return max(0, min(until_epoch + 1, self.epochs)) * self.total

    def _ranges(self, start: int, stop: int) -> Iterable[Range]:
        while start < stop:
            epoch, position = divmod(start, self.total)
            length = min(stop - start, self.total - position)
            yield Range(epoch, position, position + length)
            start += length


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    joined: list[Piece] = []
    for start, stop in sorted(pieces):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
