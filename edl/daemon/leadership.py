"""A daemon's part in leading its job: it is a candidate for election, leads while elected, and resigns if it cannot
lead.

Owns: the leader in this process, that a leader whose task has ended, for any reason, makes room for another, and that a
write without an answer begins another term. Does not own: one term (`edl.daemon.leader_shell`), the election
(`edl.coordination.election`), nor when a job has failed because no daemon can lead it (`edl.core.job.resignations`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from edl.clock import Clock
from edl.coordination.election import Candidate, Reign
from edl.coordination.store import Store
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.daemon.record_store import ResignationWriter, reason_of
from edl.protocol import leader_messages, node_paths
from edl.protocol.record import Status
from edl.transport.call_errors import Reason, Refused
from edl.transport.service import Call

logger = logging.getLogger("edl")

LONGEST: Final = 4  # most session time-outs for which a daemon is no candidate after it has resigned
UNHEARD: Final = 3  # unreported resignations after which this daemon gives up


class Door(Protocol):
    """The server that receives calls (`edl.transport.rpc.Server`)."""

    term: int


class Leadership:
    def __init__(
        self, about: LeaderConfig, port: int, store: Store, door: Door, clock: Clock, lead: Callable[[Reign], Leader]
    ) -> None:
        """`lead` makes a leader for a term that has just begun; the leader is run here."""
        self._about = about
        self._store = store
        self._door = door
        self._clock = clock
        self._lead = lead
        self.ident = f"{about.worker} {about.address}:{port}"
        """The identity by which the daemon is a candidate for election."""
        root = node_paths.root(about.job)
        self._candidate = Candidate(store, root, self.ident, self._on_reign, on_crash=self._on_crash)
        self._leader: Leader | None = None
        self._reign: asyncio.Task[None] | None = None
        self._resigning: asyncio.Task[None] | None = None
        self._resigned = self._unheard = 0
        self.doubted_at = -math.inf
        """When the coordinator last left a leader of this daemon without an answer."""
        self.hopeless: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason, once this daemon will not lead again, and no other is known to lead: its worker cannot go on."""

    def stand(self) -> None:
        self._candidate.stand()

    async def leave(self) -> None:
        """Leave the election for good, and let the next candidate lead at once."""
        if self._resigning is not None:
            self._resigning.cancel()
            await asyncio.gather(self._resigning, return_exceptions=True)
        reign = self._reign
        await self._candidate.resign()
        if reign is not None:
            reign.cancel()
            await asyncio.gather(reign, return_exceptions=True)

    async def answer(self, call: Call) -> leader_messages.Reply:
        """Raise Refused if this daemon does not lead; its leader may refuse, too."""
        if self._leader is None:
            raise Refused(Reason.TERM)
        return await self._leader.answer(call)

    def status(self) -> Status | None:
        """Return the job's status, if this daemon leads it, and has taken over."""
        return None if self._leader is None else self._leader.status()

    async def wait_at_rest(self, patience_s: float) -> None:
        """Wait, if this daemon leads, until the other workers do not depend on this host; bounded (I12)."""
        leader, reign = self._leader, self._reign
        if leader is None or reign is None:
            return
        rest = asyncio.ensure_future(leader.wait_at_rest())
        await asyncio.wait({rest, reign}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        rest.cancel()

    # ------------------------------------------------------------------------------------------------- its beginning

    def _on_reign(self, reign: Reign | None) -> None:
        if self._reign is not None:
            self._reign.cancel()
        self._reign = self._leader = None
        self._door.term = 0
        if reign is None:
            return
        self._leader = self._lead(reign)
        self._reign = asyncio.ensure_future(self._leader.run())
        self._reign.add_done_callback(partial(self._on_end, reign))
        self._door.term = reign.term

    # -------------------------------------------------------------------------------------------------- and its end

    def _on_end(self, reign: Reign, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if task is not self._reign:  # its term was over before
            if error is not None:
                logger.debug("a deposed leader ended by %r", error)
            return
        in_doubt = error is None and self._leader is not None and self._leader.in_doubt
        self._reign = self._leader = None
        self._door.term = 0
        if in_doubt:
            self.doubted_at = self._clock.now()
            self._candidate.renew()
            return
        self._resigning = asyncio.ensure_future(self._resign(reign, error))
        self._resigning.add_done_callback(self._on_resigned)

    async def _resign(self, reign: Reign, error: BaseException | None) -> None:
        """Resign, and become a candidate again unless that is hopeless."""
        # Without an error another daemon leads already, and only this candidate has not noticed.
        if error is None:
            await self._candidate.resign(insist=True)
            self._candidate.stand()
            return
        logger.error("this leader resigns: %s", reason_of(error), exc_info=error)
        about = self._about
        words = ResignationWriter(about.job, about.worker, self._store, reign, self._clock, error)
        said = await self._candidate.resign(words, insist=True)
        self._resigned, self._unheard = self._resigned + 1, 0 if said else self._unheard + 1
        if words.job_was_over or self._unheard >= UNHEARD:
            self._give_up(words.reason)
            return
        if not words.ends_job:  # else the next leader has only the end to report
            await asyncio.sleep(min(self._resigned, LONGEST) * about.session_timeout_s)
        self._candidate.stand()

    def _on_resigned(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)

    def _on_crash(self, error: BaseException) -> None:
        self._give_up(f"it cannot stand for election: {reason_of(error)}")

    def _give_up(self, reason: str) -> None:
        if not self.hopeless.done():
            self.hopeless.set_result(f"this worker's daemon cannot lead the job, and no other is known to: {reason}")
