"""How the members of a ring hand each other what they have for just one other, in few calls: the index algorithm of
Bruck, Ho, Kipnis, Upfal and Weathersby (1997).

Each member has one parcel for each other: gloo opens a socket for each pair, so an address is of use to one member
alone. A parcel's way is the distance from its sender's rank to its receiver's, written in digits of base `RADIX`. In
round k all parcels travel whose k-th digit is not 0, that digit times RADIX^k ranks on; those with the same digit go
together, in one bundle. After the last round every parcel is where it belongs. Whoever needs a bundle asks for it.

So among n members each asks RADIX - 1 others in each of log n rounds, and no one carries more than n log n parcels. Up
to RADIX members, each asks each, and there is one round.

Owns: who asks whom for which parcels, and where they are. Does not own: asking (`edl.runtime.introductions`), nor what
is in a parcel. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

RADIX = 4


class Errand(NamedTuple):
    """One bundle, and the rank of the member that has it for us."""

    round: int
    digit: int
    rank: int


def errands(rank: int, size: int) -> tuple[Errand, ...]:
    """All that a member has to ask for, first round first."""
    return tuple(
        Errand(number, digit, (rank - digit * RADIX**number) % size)
        for number in range(_rounds(size))
        for digit in range(1, RADIX)
        if digit * RADIX**number < size
    )


class Exchange:
    """One member's part in one exchange of parcels."""

    def __init__(self, rank: int, size: int) -> None:
        self.errands = errands(rank, size)
        self._rank = rank
        self._size = size
        self._stages: list[dict[int, bytes]] = []  # what is here before each round, by distance
        self._taken: dict[tuple[int, int], Sequence[bytes]] = {}

    def begin(self, parcels: Sequence[bytes]) -> None:
        """One for each rank; that for ourselves stays unused. Harmless twice."""
        if not self._stages:
            ways = range(1, self._size)
            self._stages.append({way: parcels[(self._rank + way) % self._size] for way in ways})
            self._go_on()

    def bundle(self, number: int, digit: int) -> tuple[bytes, ...] | None:
        """What travels in round `number` from here, that digit times RADIX^number ranks on; None: not here yet.

        Raises ValueError where nothing travels so.
        """
        if not 0 <= number < _rounds(self._size) or not 1 <= digit < RADIX:
            raise ValueError(f"no bundle {digit} travels in round {number} among {self._size}")
        if number >= len(self._stages):
            return None
        return tuple(self._stages[number][way] for way in self._ways(number, digit))

    def take(self, errand: Errand, parcels: Sequence[bytes]) -> dict[int, bytes]:
        """A bundle has come. Returns those of it that are for us, by their sender's rank. Raises ValueError."""
        number, digit, _ = errand
        ways = list(self._ways(number, digit))
        if len(parcels) != len(ways):
            raise ValueError(f"{len(parcels)} parcels in a bundle of {len(ways)}")
        self._taken[number, digit] = parcels
        self._go_on()
        arrived = zip(ways, parcels, strict=True)
        return {(self._rank - way) % self._size: one for way, one in arrived if way < RADIX ** (number + 1)}

    def _go_on(self) -> None:
        while 0 < len(self._stages) < _rounds(self._size):
            number = len(self._stages) - 1
            if any((one.round, one.digit) not in self._taken for one in self.errands if one.round == number):
                return
            stage = dict(self._stages[-1])
            for errand in self.errands:
                if errand.round == number:
                    ways = self._ways(number, errand.digit)
                    stage.update(zip(ways, self._taken[number, errand.digit], strict=True))
            self._stages.append(stage)

    def _ways(self, number: int, digit: int) -> Iterator[int]:
        """The distances that have this digit in this place, shortest first."""
        step = RADIX**number
        for begin in range(digit * step, self._size, RADIX * step):
            yield from range(begin, min(begin + step, self._size))


def _rounds(size: int) -> int:
    rounds = 0
    while RADIX**rounds < size:
        rounds += 1
    return rounds
