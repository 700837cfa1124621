"""How the members of a ring hand each other what they have for just one other, in few calls.

Each member has one parcel for each other: gloo opens a socket for each pair, so an address is of use to one member
alone. Neighbours in rank make groups, about as many as each has members, and the last of a group is its head. In the
first round each head asks those of its group for all that they have. In the second it asks each other head for what
that one's group has for its own. In the third each member asks its head for what has come for it. The member that
needs a bundle asks for it.

So among n members each but the heads asks once and is asked once, and these, the square root of n, make about twice
that root of calls, and answer as many. None carries more than n parcels for each of its group. In a small ring each
is a group of its own: all ask all others, and there is one round.

Calls are what counts: each costs two daemons as much as the thousands of parcels in it. Heads are not the first of
their groups, as that of rank 0 often leads the job, and has other things to do.

Owns: which member asks which for which parcels, and where they are. Does not own: asking (`edl.daemon.introductions`),
nor what is in a parcel. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import isqrt
from typing import Final, NamedTuple

DIRECT: Final = 8  # members, of a ring in which each asks each

GATHER: Final = 0  # the rounds
TRADE: Final = 1
HAND_OUT: Final = 2


class Errand(NamedTuple):
    """One bundle, and the rank of the member that has it for us."""

    round: int
    part: int  # of what is there: that for the group, in the last round for the rank, which asks
    rank: int


class Groups:
    """Of the ranks of a ring."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._width = 1 if size <= DIRECT else isqrt(size - 1) + 1
        self.count = -(-size // self._width)

    def of(self, rank: int) -> int:
        """The group of a rank."""
        return rank // self._width

    def members(self, group: int) -> range:
        """Its ranks."""
        return range(group * self._width, min((group + 1) * self._width, self._size))

    def head(self, group: int) -> int:
        """The member that asks and answers for the others of it."""
        return self.members(group)[-1]


def errands(rank: int, size: int) -> tuple[Errand, ...]:
    """All that a member has to ask for, first round first."""
    groups = Groups(size)
    ours = groups.of(rank)
    head = groups.head(ours)
    if rank != head:
        return (Errand(HAND_OUT, rank, head),)
    gather = (Errand(GATHER, ours, member) for member in groups.members(ours) if member != rank)
    others = ((ours + way) % groups.count for way in range(1, groups.count))  # not all ask the same one first
    return (*gather, *(Errand(TRADE, ours, groups.head(other)) for other in others))


class Exchange:
    """One member's part in one exchange of parcels."""

    def __init__(self, rank: int, size: int) -> None:
        self.errands = errands(rank, size)
        self._rank = rank
        self._size = size
        self._groups = Groups(size)
        self._group = self._groups.of(rank)
        self._ours = self._groups.members(self._group)
        self._is_head = rank == self._groups.head(self._group)
        self._rows: dict[int, Sequence[bytes]] = {}  # by rank: what it has for all; a head has those of its group
        self._blocks: dict[int, Sequence[bytes]] = {}  # at a head, by group: what each there has for each of ours

    @property
    def here(self) -> int:
        """The rounds up to this one can be answered."""
        if self._rank not in self._rows:
            return 0
        if not self._is_head or len(self._rows) < len(self._ours):
            return TRADE
        return HAND_OUT if len(self._blocks) < self._groups.count - 1 else HAND_OUT + 1

    def begin(self, parcels: Sequence[bytes]) -> None:
        """One for each rank; that for ourselves stays unused. Harmless twice."""
        self._rows.setdefault(self._rank, tuple(parcels))

    def bundle(self, number: int, part: int) -> tuple[bytes, ...] | None:
        """What is asked of this member in round `number`; None: not here yet. Raises ValueError for what never is."""
        if not self._gives(number, part):
            raise ValueError(f"rank {self._rank} of {self._size} has no bundle {part} in round {number}")
        if number >= self.here:
            return None
        if number == GATHER:
            return tuple(self._rows[self._rank])
        if number == TRADE:
            theirs = self._groups.members(part)
            rows = (self._rows[sender][theirs.start : theirs.stop] for sender in self._ours)
            return tuple(chain.from_iterable(rows))
        return tuple(chain.from_iterable(self._from(group, part) for group in range(self._groups.count)))

    def take(self, errand: Errand, parcels: Sequence[bytes]) -> dict[int, bytes]:
        """A bundle has come. Returns those of it that are for us, by their sender's rank. Raises ValueError."""
        group = self._groups.of(errand.rank)
        senders = self._groups.members(group)
        due = len(senders) * len(self._ours) if errand.round == TRADE else self._size
        if len(parcels) != due:
            raise ValueError(f"{len(parcels)} parcels in a bundle of {due}")
        if errand.round == HAND_OUT:
            return {sender: parcel for sender, parcel in enumerate(parcels) if sender != self._rank}
        if errand.round == GATHER:
            self._rows[errand.rank] = parcels
            return {errand.rank: parcels[self._rank]}
        self._blocks[group] = parcels
        return dict(zip(senders, self._from(group, self._rank), strict=True))

    def _gives(self, number: int, part: int) -> bool:
        if number == GATHER:
            return part == self._group and not self._is_head
        if number == TRADE:
            return self._is_head and part != self._group and 0 <= part < self._groups.count
        return number == HAND_OUT and self._is_head and part in self._ours and part != self._rank

    def _from(self, group: int, receiver: int) -> Sequence[bytes]:
        """What those of `group` have for one of ours."""
        if group == self._group:
            return [self._rows[sender][receiver] for sender in self._ours]
        return self._blocks[group][receiver - self._ours.start :: len(self._ours)]
