"""Exchange parcels among the members of a ring in few calls: each parcel is for just one other member.

Each member has one parcel for each other: gloo opens a socket for each pair, so an address is of use to one member
alone. Neighbours in rank make groups, about as many as each has members, and the last of a group is its head. Each
member brings its head what it has for all. Once a head has that of its whole group, it trades with each other head:
what its group has for the other's, for what that one has for its own. Then it answers its members, each with what all
have for it. A question carries what its sender brings, and its answer what is given for that, so two members need one
call. In a small ring each is a group of its own: each two members trade.

So among n members each but the heads makes one call, and these, the square root of n, answer about as many as that root
from their groups, and make or answer one for each other head. None carries more than n parcels for each of a group.

Calls are what counts: each costs two daemons as much as the thousands of parcels in it. Heads are not the first of
their groups, as that of rank 0 often leads the job, and has other things to do.

Owns: which member asks which, what goes with the question, and what with the answer. Does not own: asking
(`edl.daemon.address_book`), nor what is in a parcel. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import isqrt
from typing import Final, NamedTuple

DIRECT: Final = 8  # members, of a ring in which each trades with each

BRING: Final = 0  # of a member to its head: parcels for all, for those of all
TRADE: Final = 1  # of a head to another: parcels for its group, for those of that one's


class ExchangeRequest(NamedTuple):
    kind: int
    part: int  # what is brought, and is given for it: that of our rank to its head, that of our group to another
    rank: int  # of the member that is asked


class Groups:
    def __init__(self, size: int) -> None:
        self._size = size
        self._width = 1 if size <= DIRECT else isqrt(size - 1) + 1
        self.count = -(-size // self._width)

    def of(self, rank: int) -> int:
        return rank // self._width

    def members(self, group: int) -> range:
        return range(group * self._width, min((group + 1) * self._width, self._size))

    def head(self, group: int) -> int:
        return self.members(group)[-1]


def partners(rank: int, size: int) -> tuple[int, ...]:
    """Return the ranks with which a member trades, whichever of two it is that asks."""
    groups = Groups(size)
    ours = groups.of(rank)
    head = groups.head(ours)
    if rank != head:
        return (head,)
    others = (groups.head((ours + way) % groups.count) for way in range(1, groups.count))  # not all the same one first
    return (*(member for member in groups.members(ours) if member != rank), *others)


def errands(rank: int, size: int) -> tuple[ExchangeRequest, ...]:
    """Return all calls that a member makes: of two heads one calls, and each calls about as many as call it."""
    groups = Groups(size)
    ours = groups.of(rank)
    head = groups.head(ours)
    if rank != head:
        return (ExchangeRequest(BRING, rank, head),)
    half = groups.count // 2
    ahead = [(ours + way) % groups.count for way in range(1, (groups.count + 1) // 2)]
    if groups.count % 2 == 0 and ours < half:  # it lies half way around from us, as we do from it
        ahead.append(ours + half)
    return tuple(ExchangeRequest(TRADE, ours, groups.head(other)) for other in ahead)


class Exchange:
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
    def stage(self) -> int:
        """Return 0: we have yet to hear what to bring. 1: our errands are due. 2: a head can answer its group, too."""
        if len(self._rows) < (len(self._ours) if self._is_head else 1):
            return 0
        return 2 if self._is_head and len(self._blocks) == self._groups.count - 1 else 1

    def begin(self, parcels: Sequence[bytes]) -> None:
        """Set this member's parcels, one for each rank; its own stays unused. Harmless twice."""
        self._rows.setdefault(self._rank, tuple(parcels))

    def brings(self, errand: ExchangeRequest) -> tuple[bytes, ...]:
        """Return the parcels that go with a call, once that is due."""
        if errand.kind == BRING:
            return tuple(self._rows[self._rank])
        return self._block(self._groups.of(errand.rank))

    def take(self, errand: ExchangeRequest, parcels: Sequence[bytes]) -> dict[int, bytes]:
        """Take an answer. Return its parcels for us, by their sender's rank. Raises ValueError."""
        if errand.kind == TRADE:
            return self._take_block(self._groups.of(errand.rank), parcels)
        self._count(parcels, self._size)
        return {sender: parcel for sender, parcel in enumerate(parcels) if sender != self._rank}

    def receive(self, kind: int, part: int, parcels: Sequence[bytes]) -> dict[int, bytes]:
        """Take a question. Return its new parcels for us, by their sender's rank. Raises ValueError."""
        if not self._is_asked(kind, part):
            raise ValueError(f"rank {self._rank} of {self._size} is not asked for part {part} of kind {kind}")
        if kind == TRADE:
            return {} if part in self._blocks else self._take_block(part, parcels)
        self._count(parcels, self._size)
        if part in self._rows:
            return {}
        self._rows[part] = parcels
        return {part: parcels[self._rank]}

    def gives(self, kind: int, part: int) -> tuple[bytes, ...] | None:
        """Return the answer to a question that was received; None: not here yet."""
        if self.stage < (1 if kind == TRADE else 2):
            return None
        if kind == TRADE:
            return self._block(part)
        return tuple(chain.from_iterable(self._from(group, part) for group in range(self._groups.count)))

    def _is_asked(self, kind: int, part: int) -> bool:
        if kind == TRADE:
            return self._is_head and part != self._group and 0 <= part < self._groups.count
        return kind == BRING and self._is_head and part in self._ours and part != self._rank

    def _block(self, group: int) -> tuple[bytes, ...]:
        """Return the parcels from each member of our group for each of another."""
        theirs = self._groups.members(group)
        return tuple(chain.from_iterable(self._rows[sender][theirs.start : theirs.stop] for sender in self._ours))

    def _take_block(self, group: int, parcels: Sequence[bytes]) -> dict[int, bytes]:
        senders = self._groups.members(group)
        self._count(parcels, len(senders) * len(self._ours))
        self._blocks[group] = parcels
        return dict(zip(senders, self._from(group, self._rank), strict=True))

    def _count(self, parcels: Sequence[bytes], due: int) -> None:
        if len(parcels) != due:
            raise ValueError(f"{len(parcels)} parcels where {due} are due")

    def _from(self, group: int, receiver: int) -> Sequence[bytes]:
        """Return the parcels from the members of `group` for one of ours."""
        if group == self._group:
            return [self._rows[sender][receiver] for sender in self._ours]
        return self._blocks[group][receiver - self._ours.start :: len(self._ours)]
