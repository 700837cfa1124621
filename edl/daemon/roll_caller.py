"""Check that daemons are reached: those of a next ring reach each other, and silent ones still listen.

Beside a ring that trains, each daemon asks the few others with which it will exchange addresses in the switch, and
reports to the leader which have not answered yet (`edl.core.switch.ring_forming`). A daemon answers once it has been
called itself, while its trainer is there: so a daemon that answers could enter the ring.

A host refuses at once if no process listens at a daemon's address. A host that is gone, or cut off, does not answer;
and a frozen one still accepts a connection. So a refusal is sure enough to end a session early, which a living daemon
would survive as it survives its session's end.

Owns: one daemon's part, and these tests. Does not own: which workers are called, nor what follows from the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from edl.daemon.address_book import RETRY_S, AddressBook
from edl.errors import PeerError
from edl.protocol.assignment import Orders, Peer, Summons
from edl.protocol.leader_messages import AskPresence, Presence
from edl.protocol.record import Identity

PATIENCE_S = 0.5  # for a connection
AGAIN_S = 0.1  # between two attempts: the first may have met a daemon that just ends, or begins


async def refuses(address: str, port: int) -> bool:
    """Tell whether a connection is refused twice in a row."""
    if not await _refuses_once(address, port):
        return False
    await asyncio.sleep(AGAIN_S)
    return await _refuses_once(address, port)


async def _refuses_once(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


class PortProbe:
    """Test the addresses of silent workers, for one leader (`edl.core.job.deadlines`)."""

    def __init__(self, tell: Callable[[tuple[Identity, ...]], None]) -> None:
        """`tell`: no process listens any more at the addresses of these workers."""
        self._tell = tell
        self._silent: Sequence[Identity] = ()
        self._task: asyncio.Task[None] | None = None

    def look_for(self, silent: Sequence[Identity]) -> None:
        """Test these workers from now on, until others are given, or none."""
        self._silent = silent
        if silent and self._task is None:
            self._task = asyncio.ensure_future(self._knock())

    def close(self) -> None:
        """`tell` is not called after this."""
        if self._task is not None:
            self._task.cancel()

    async def _knock(self) -> None:
        while self._silent:
            asked = tuple(one for one in self._silent if one.port)
            refused = await asyncio.gather(*(refuses(one.address, one.port) for one in asked))
            gone = tuple(one for one, refuses_us in zip(asked, refused, strict=True) if refuses_us)
            if gone:
                self._tell(gone)
            await asyncio.sleep(AGAIN_S)
        self._task = None


class RollCaller:
    """The presence checks of one daemon, one call after the other."""

    def __init__(self, introductions: AddressBook, hold_s: float, answer_s: float, tell: Callable[[], None]) -> None:
        """`tell`: all have answered. Questions wait for `hold_s`, and their answers take `answer_s`."""
        self._introductions = introductions
        self._hold_s = hold_s
        self._answer_s = answer_s
        self._tell = tell
        self._called = Summons(0, ())
        self._waits_for: set[int] = set()  # ranks
        self._asking: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._over = False

    @property
    def met(self) -> tuple[int, ...]:
        """The newest call to a ring, and the ranks that have not answered this daemon yet."""
        return (self._called.number, *sorted(self._waits_for))

    def follow(self, orders: Orders) -> None:
        """Follow the call in `orders`, and ask the other daemons, if the call is new."""
        called = orders.summons
        if called is None or self._knows(called) or self._over:
            if called is None:
                self._stop_asking()
            return
        self._stop_asking()
        self._called, self._waits_for = called, {peer.rank for peer in called.peers}
        self._introductions.keep_to([peer.address for peer in called.peers])
        for peer in called.peers:
            self._asking.add(task := asyncio.ensure_future(self._ask(peer, called.number)))
            task.add_done_callback(self._asking.discard)
        self._news.set()
        self._news = asyncio.Event()
        if not self._waits_for:
            self._tell()

    def _knows(self, called: Summons) -> bool:
        """Tell whether this call is known; it stays the same call once its ring is to be formed."""
        return (called.number, called.peers) == (self._called.number, self._called.peers)

    def give_up(self) -> None:
        """Stop, as the trainer is gone: it enters no ring."""
        self._over = True
        self._stop_asking()

    async def answer(self, asked: AskPresence) -> Presence:
        """Answer another daemon: tell whether this one is called, and its trainer could come."""
        deadline = asyncio.get_running_loop().time() + min(asked.hold_s, self._hold_s)
        while self._called.number < asked.number and not self._over:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                break
        return Presence(self._called.number >= asked.number and not self._over)

    async def stop(self) -> None:
        """Stop asking. Harmless twice."""
        asking = list(self._asking)
        self.give_up()
        await asyncio.gather(*asking, return_exceptions=True)

    def _stop_asking(self) -> None:
        for task in self._asking:
            task.cancel()

    async def _ask(self, peer: Peer, number: int) -> None:
        """Ask until the peer has answered; cancelled once that does not matter any more."""
        asked = AskPresence(number, self._hold_s)
        while True:
            try:
                caller = self._introductions.caller(peer.address)
                reply = await caller.call(asked, Presence, term=0, deadline_s=self._hold_s + self._answer_s)
                if reply.here:
                    break
            except PeerError:  # the peer's daemon is gone: another may come, and orders tell where
                pass
            await asyncio.sleep(RETRY_S)
        self._waits_for.discard(peer.rank)
        if not self._waits_for:
            self._tell()
