"""How the members of a ring hand each other what they have for just one other, in few calls: the index algorithm of
Bruck, Ho, Kipnis, Upfal and Weathersby (1997).

Each member has one parcel for each other: gloo opens a socket for each pair, so an address is of use to one member
alone. A parcel's way is the distance from its sender's rank to its receiver's, written in digits of some base. In
round k all parcels travel whose k-th digit is not 0, that digit times base^k ranks on; those with the same digit go
together, in one bundle. After the last round every parcel is where it belongs. Whoever needs a bundle asks for it.

So among n members each asks base - 1 others in each of log n rounds, and no one carries more than n log n parcels. In
base 4, up to four members ask each other, and there is one round. A large ring takes long to form as it is, and what
counts is how often its members call: least often in base 2.

Owns: who asks whom for which parcels, and where they are. Does not own: asking (`edl.runtime.introductions`), nor what
is in a parcel. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SMALL = 64  # members, of a ring in which rounds cost more than calls


class Errand(NamedTuple):
    """One bundle, and the rank of the member that has it for us."""

    round: int
    digit: int
    rank: int


def errands(rank: int, size: int) -> tuple[Errand, ...]:
    """All that a member has to ask for, first round first."""
    base = _base(size)
    return tuple(
        Errand(number, digit, (rank - digit * base**number) % size)
        for number in range(_rounds(size))
        for digit in range(1, base)
        if digit * base**number < size
    )


class Exchange:
    """One member's part in one exchange of parcels."""

    def __init__(self, rank: int, size: int) -> None:
        self.errands = errands(rank, size)
        self._rank = rank
        self._size = size
        self._base = _base(size)
        self._here: list[bytes] = []  # by distance: what has come so far, and is not where it belongs or has not left
        self._bundles: dict[tuple[int, int], tuple[bytes, ...]] = {}  # those of the rounds that have begun here
        self._taken: dict[tuple[int, int], Sequence[bytes]] = {}  # those of rounds that are not over here
        self._round = 0  # the one that has begun last

    def begin(self, parcels: Sequence[bytes]) -> None:
        """One for each rank; that for ourselves stays unused. Harmless twice."""
        if not self._here:
            self._here = [parcels[(self._rank + way) % self._size] for way in range(self._size)]
            self._pack()
            self._go_on()

    def bundle(self, number: int, digit: int) -> tuple[bytes, ...] | None:
        """What travels in round `number` from here, that digit times base^number ranks on; None: not here yet.

        Raises ValueError where nothing travels so.
        """
        if not 0 <= number < _rounds(self._size) or not 1 <= digit < self._base:
            raise ValueError(f"no bundle {digit} travels in round {number} among {self._size}")
        return self._bundles.get((number, digit))

    def take(self, errand: Errand, parcels: Sequence[bytes]) -> dict[int, bytes]:
        """A bundle has come. Returns those of it that are for us, by their sender's rank. Raises ValueError."""
        number, digit, _ = errand
        ways = list(self._ways(number, digit))
        if len(parcels) != len(ways):
            raise ValueError(f"{len(parcels)} parcels in a bundle of {len(ways)}")
        self._taken[number, digit] = parcels
        self._go_on()
        arrived = zip(ways, parcels, strict=True)
        return {(self._rank - way) % self._size: one for way, one in arrived if way < self._base ** (number + 1)}

    def _go_on(self) -> None:
        """To the next round, once all of this one are here."""
        while self._here and self._round < _rounds(self._size) - 1:
            due = [(one.round, one.digit) for one in self.errands if one.round == self._round]
            if not self._taken.keys() >= set(due):
                return
            for bundle in due:
                for way, parcel in zip(self._ways(*bundle), self._taken.pop(bundle), strict=True):
                    self._here[way] = parcel
            self._round += 1
            self._pack()

    def _pack(self) -> None:
        """The bundles of the round that begins."""
        for digit in range(1, self._base):
            self._bundles[self._round, digit] = tuple(self._here[way] for way in self._ways(self._round, digit))

    def _ways(self, number: int, digit: int) -> Iterator[int]:
        """The distances that have this digit in this place, shortest first."""
        step = self._base**number
        for begin in range(digit * step, self._size, self._base * step):
            yield from range(begin, min(begin + step, self._size))


def _base(size: int) -> int:
    return 4 if size <= SMALL else 2


def _rounds(size: int) -> int:
    rounds = 0
    while _base(size) ** rounds < size:
        rounds += 1
    return rounds
