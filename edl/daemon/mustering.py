"""How the daemons of a next ring see that they reach each other, beside a ring that trains
(`edl.core.switch.mustering`).

Each asks the few others with whom it will trade addresses in the switch, and tells the leader which have not answered
yet. A daemon answers once it has been called itself, while its trainer is there: so one that answers could come to the
ring.

Owns: one daemon's part. Does not own: who is called, nor what follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edl.daemon.introductions import RETRY_S, Introductions
from edl.errors import PeerError
from edl.protocol.assignment import Orders, Summons
from edl.protocol.messages import AskPresence, Presence
from edl.protocol.ring import Peer


class Neighbours:
    """All of one daemon's, one after the other."""

    def __init__(self, introductions: Introductions, hold_s: float, answer_s: float, tell: Callable[[], None]) -> None:
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
        """The newest roll that we were called to, and the ranks of those that have not answered us yet."""
        return (self._called.number, *sorted(self._waits_for))

    def follow(self, orders: Orders) -> None:
        """Answer to the roll that `orders` tell of, and ask the others, if that is news."""
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
        """It is no other call for us if its ring is to be formed by now."""
        return (called.number, called.peers) == (self._called.number, self._called.peers)

    def give_up(self) -> None:
        """Our trainer is gone: it comes to no ring."""
        self._over = True
        self._stop_asking()

    async def answer(self, asked: AskPresence) -> Presence:
        """A question of another daemon: are we called, and could we come?"""
        deadline = asyncio.get_running_loop().time() + min(asked.hold_s, self._hold_s)
        while self._called.number < asked.number and not self._over:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                break
        return Presence(self._called.number >= asked.number and not self._over)

    async def stop(self) -> None:
        """Harmless twice."""
        asking = list(self._asking)
        self.give_up()
        await asyncio.gather(*asking, return_exceptions=True)

    def _stop_asking(self) -> None:
        for task in self._asking:
            task.cancel()

    async def _ask(self, peer: Peer, number: int) -> None:
        """Until it has answered; cancelled once that does not matter any more."""
        asked = AskPresence(number, self._hold_s)
        while True:
            try:
                caller = self._introductions.caller(peer.address)
                reply = await caller.call(asked, Presence, term=0, deadline_s=self._hold_s + self._answer_s)
                if reply.here:
                    break
            except PeerError:  # its daemon is gone: another may come, and orders say where
                pass
            await asyncio.sleep(RETRY_S)
        self._waits_for.discard(peer.rank)
        if not self._waits_for:
            self._tell()
