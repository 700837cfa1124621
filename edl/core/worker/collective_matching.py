"""Match the collectives of a ring's members: by name, in whatever order each member begins them.

Owns: what a member announces of a collective, and whether all have announced the same. Does not own: telling the others
(`edl.torch.announcing`), nor the collectives.

Members tell each other in rounds what they have begun. All hear the same rounds, so all find the same matches, in the
same order: what follows a match, an operation of a process group, has its place in the group's order by that.

A member that waits for a collective takes part in rounds with nothing to announce. Where all members do that at once,
none can get what it waits for any more.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Sequence

import msgspec

CALL_CHARACTERS, FORM_CHARACTERS = 100, 160  # of a text for people that may be as long as a script likes
DIGEST_BYTES = 16


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """A collective that a member has begun."""

    key: bytes  # what is the same in all that belong together
    alike: bytes  # digest of what has to be the same beside
    call: str  # for people: allreduce 'loss'
    form: str  # for people: float32 [7], Sum
    rows: tuple[int, ...] = ()  # what may differ: the member's rows, or those for each other member


class Round(msgspec.Struct, frozen=True, array_like=True):
    announced: tuple[Announcement, ...] = ()
    waits: str = ""  # for people: what it cannot go on without


class Match(msgspec.Struct, frozen=True):
    """A collective that all members have begun."""

    of: tuple[Announcement, ...]  # by rank

    @property
    def rows(self) -> list[tuple[int, ...]]:
        return [one.rows for one in self.of]

    @property
    def difference(self) -> str:
        """Return the first difference between members, with both sides; empty where there is none."""
        first = self.of[0]
        for rank, other in enumerate(self.of):
            if other.alike != first.alike:
                return (
                    f"{first.call}: {first.form} on rank 0, but {other.form} on rank {rank}: "
                    "all workers must pass the same type, shape and arguments"
                )
        return ""


class RoundHeard(msgspec.Struct, frozen=True):
    matches: tuple[Match, ...] = ()
    stuck: str = ""  # what each member waits for, where none of them can get it


def announcement(kind: str, name: str | None, form: str, rows: Sequence[int] = ()) -> Announcement:
    """Collectives without a name match by their kind, in their order."""
    call = kind if name is None else f"{kind} {name!r}"
    key = _digest(f"{kind}\0" if name is None else f"{kind}\0\0{name}")
    return Announcement(key, _digest(form), _short(call, CALL_CHARACTERS), _short(form, FORM_CHARACTERS), tuple(rows))


class Matching:
    """The collectives begun in one ring. Each member keeps such a table, and all tables are the same."""

    def __init__(self, size: int) -> None:
        self._begun: dict[bytes, list[deque[Announcement]]] = defaultdict(lambda: [deque() for _ in range(size)])

    def hear(self, rounds: Sequence[Round]) -> RoundHeard:
        """Take each member's next round, by rank, and find what all have begun by now."""
        matches = [
            match
            for rank, said in enumerate(rounds)
            for one in said.announced
            if (match := self._announced(rank, one)) is not None
        ]
        if any(said.announced or not said.waits for said in rounds):
            return RoundHeard(tuple(matches))
        self._begun.clear()
        waits = ", ".join(f"rank {rank} for {said.waits}" for rank, said in enumerate(rounds))
        return RoundHeard(stuck=f"the workers wait for each other: {waits}: all workers must call the same collectives")

    def _announced(self, rank: int, one: Announcement) -> Match | None:
        members = self._begun[one.key]
        members[rank].append(one)
        if not all(members):
            return None
        match = Match(tuple(member.popleft() for member in members))
        if not any(members):
            del self._begun[one.key]
        return match


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
