"""Collectives of the script's own in a ring of process groups: each begins once all members have announced it.

Owns: the rounds in which members tell each other what they have begun, and beginning what all have. Does not own: what
belongs together (`edl.core.worker.collective_matching`), nor the operations (`edl.torch.group_collectives`).

Operations of a process group pair up by their order alone: of other types or shapes they give garbage, or gloo ends the
process. So a small all-gather comes before each: one round, for as many collectives as were begun since the last one.
One round is under way at a time, and what it has matched begins before the next, so that all members have the
operations of the group in the same order. A round is looked at in each call: begin, poll, wait.

The steps of `edl.Optimizer` need none of this (`edl.torch.buckets`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import torch

from edl.core.worker.collective_matching import Announcement, Match, Matching, Round
from edl.errors import CollectiveFailed, CollectiveRefused, RingBroken, UsageError

ROOM_BYTES = 4096  # of what a member says in a round
ROOM_OF_MEMBER_BYTES = 10  # for each member more: an announcement may have a number for each of them
LENGTH_BYTES = 8
POLLS_S = 1.0  # who has polled so lately is at it
ROUND = "a round"  # what an operation of these is called where waits are told of
FEW = 64  # names of what is through are kept up to so many
Begun = tuple[Sequence[Any], Callable[[], Any]]  # operations under way, and what comes of them


class RoundGroups(Protocol):
    """The process groups of a ring, as much of them as rounds need."""

    rest: Any
    broken: str

    def begun(self, work: Any) -> Any:
        """Note an operation that is to be waited for, and return it."""

    def wait(self, work: Any, what: str = ...) -> None:
        """Wait until an operation is through. Raises RingBroken."""


class Announced:
    """A collective that was begun here."""

    def __init__(self, rounds: Announcing, what: Announcement, start: Callable[[Match], Begun]) -> None:
        self.what = what
        self._rounds = rounds
        self._start: Callable[[Match], Begun] | None = start
        self._works: list[Any] | None = None  # None: not all members have begun it
        self._outcome: Callable[[], Any] | None = None
        self._found: Any = None
        self._failure: CollectiveFailed | UsageError | None = None

    @property
    def matched(self) -> bool:
        """Tell whether all members have begun the collective, or none will any more."""
        return self._works is not None

    @property
    def under_way(self) -> bool:
        """Tell whether the collective is not through, as far as is known here."""
        return self._works is None or not all(work.is_completed() for work in self._works)

    def is_done(self) -> bool:
        """Tell whether `result` would return at once."""
        if self._works is None:
            self._rounds.look(self)
        return not self.under_way

    def result(self) -> Any:
        """Raises RingBroken, and CollectiveRefused where members do not agree."""
        if self._works is None:
            self._rounds.wait_for(self)
        if self._failure is not None:
            raise self._failure
        if self._outcome is not None:
            for work in self._works or ():
                self._rounds.groups.wait(work)
            self._found, self._outcome = self._outcome(), None
        return self._found

    def begin(self, match: Match) -> None:
        """Begin the operation, as all members have announced it. Raises RingBroken."""
        start, self._start = self._start, None  # it holds tensors
        if match.difference or start is None:
            self.fail(CollectiveRefused(match.difference))
            return
        try:
            works, self._outcome = start(match)
        except (CollectiveFailed, UsageError) as error:  # of one that is through at once
            self.fail(error)
            return
        self._works = [self._rounds.groups.begun(work) for work in works]

    def fail(self, error: CollectiveFailed | UsageError) -> None:
        """Note that the collective will not begin, and what `result` is to raise."""
        self._works, self._start, self._failure = [], None, error


class Announcing:
    """The announcements of one ring of several members. Belongs to one thread at a time: where two call collectives at
    once, members begin them in other orders, and each waits for what another one's second thread would announce.
    """

    def __init__(self, groups: RoundGroups, rank: int, size: int) -> None:
        self.groups = groups
        self._rank = rank
        self._size = size
        self._room = ROOM_BYTES + ROOM_OF_MEMBER_BYTES * size
        self._matching = Matching(size)
        self._pending: dict[bytes, deque[Announced]] = {}  # begun here, not matched
        self._named: dict[bytes, Announced] = {}  # the newest of each name, of some that are through too
        self._sweep_at = FEW
        self._unsaid: deque[Announcement] = deque()
        self._round: tuple[Any, list[torch.Tensor]] | None = None  # under way: the operation, and what members say
        self._busy = False  # with what a round has matched
        self.matches = 0  # collectives that all members have come to
        self._looked_at = float("-inf")  # when the script has polled last
        self._waits = False  # the script does, for one that not all members have come to
        self._turn = threading.RLock()

    def begin(self, what: Announcement, start: Callable[[Match], Begun], *, named: bool = False) -> Announced:
        """Announce a collective, which begins by `start` once all members have announced it. Raises RingBroken, and
        UsageError where another of this name is under way.
        """
        with self._alone(what.call):
            if named:
                before = self._named.get(what.key)
                if before is not None and before.under_way:
                    raise UsageError(
                        f"{what.call}: one of this name is under way: synchronize() it first, or rename this"
                    )
            one = Announced(self, what, start)
            if named:
                self._named[what.key] = one
                self._sweep()
            self._pending.setdefault(what.key, deque()).append(one)
            self._unsaid.append(what)
            self._advance()
            return one

    @contextlib.contextmanager
    def _alone(self, call: str) -> Iterator[None]:
        """Keep other threads out of the script's collectives. Raises UsageError where one is at it."""
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                f"{call}: another thread of this script calls a collective just now. With --ring torch call all of "
                "them in one thread, or use --ring horovod"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _sweep(self) -> None:
        if len(self._named) >= self._sweep_at:
            self._named = {key: one for key, one in self._named.items() if one.under_way}
            self._sweep_at = max(FEW, 2 * len(self._named))

    def settle(self) -> None:
        """Wait until all that was begun here has matched, before an operation of edl's own in the same group. Raises
        RingBroken.
        """
        while self._pending and not self._busy:
            self.wait_for(next(iter(self._pending.values()))[0])

    def look(self, one: Announced) -> None:
        """Take what rounds have matched by now, without waiting, and begin another one for `one`. Raises RingBroken."""
        with self._alone(one.what.call):
            self._looked_at = time.monotonic()
            self._advance()
            if not one.matched and self._round is None:
                self._say("")

    def awaits(self) -> bool:
        """Tell from any thread whether the script waits or polls for a collective without all its members."""
        return bool(self._pending) and (self._waits or time.monotonic() - self._looked_at < POLLS_S)

    def awaited(self) -> str:
        """Tell from any thread which collective without all its members was begun first; empty: there is none."""
        first = next(iter(list(self._pending.values())), None)
        return first[0].what.call if first else ""

    def wait_for(self, one: Announced) -> None:
        """Wait until `one` has matched, or cannot. Raises RingBroken."""
        with self._alone(one.what.call):
            self._waits = True
            try:
                while not one.matched:
                    if self._round is None:
                        self._say(f"{one.what.call} ({one.what.form})" if one.what.form else one.what.call)
                    self._hear()
            finally:
                self._waits = False

    def _advance(self) -> None:
        if self._round is not None and (self.groups.broken or self._round[0].is_completed()):
            self._hear()
        if self._round is None and self._unsaid:
            self._say("")

    def _say(self, waits: str) -> None:
        """Begin the next round; `waits` names what this member cannot go on without."""
        if self.groups.rest is None:
            raise RingBroken("the ring in which this collective was begun was left")
        if self.groups.broken:
            raise RingBroken(f"the ring in which this collective was begun has failed: {self.groups.broken}")
        saying: list[Announcement] = []
        encoded = msgspec.msgpack.encode(Round((), "" if self._unsaid else waits))
        while self._unsaid:
            longer = msgspec.msgpack.encode(Round((*saying, self._unsaid[0])))
            if len(longer) > self._room - LENGTH_BYTES:
                break
            saying.append(self._unsaid.popleft())
            encoded = longer
        own = torch.zeros(self._room, dtype=torch.uint8)
        told = bytearray(len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded)
        own[: len(told)] = torch.frombuffer(told, dtype=torch.uint8)
        rows = [torch.empty(self._room, dtype=torch.uint8) for _ in range(self._size)]
        self._round = self.groups.begun(self.groups.rest.allgather([rows], [own])), rows

    def _hear(self) -> None:
        """Wait for the round under way, and begin what it has matched."""
        assert self._round is not None  # the caller has looked
        (work, rows), self._round = self._round, None
        self.groups.wait(work, ROUND)
        heard = self._matching.hear([_decoded(row.numpy().tobytes()) for row in rows])
        self._busy = True
        try:
            for match in heard.matches:
                waiting = self._pending[match.of[self._rank].key]
                one = waiting.popleft()
                if not waiting:
                    del self._pending[one.what.key]
                self.matches += 1
                one.begin(match)
        finally:
            self._busy = False
        if heard.stuck:
            pending, self._pending = self._pending, {}
            for stuck in (one for waiting in pending.values() for one in waiting):
                stuck.fail(CollectiveRefused(heard.stuck))


def _decoded(row: bytes) -> Round:
    length = int.from_bytes(row[:LENGTH_BYTES], "little")
    return msgspec.msgpack.decode(row[LENGTH_BYTES : LENGTH_BYTES + length], type=Round)
