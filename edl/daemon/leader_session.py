"""A worker's conversation with the leader of the job.

Owns: the nodes by which the coordinator knows that this daemon lives, finding the leader, registering with it,
reporting to it, receiving its orders, and beginning anew when it changes. Does not own: the report's contents
(`edl.daemon.trainer_view`), nor the meaning of orders.

Every message is whole and may be repeated, so that a lost answer or a new leader needs no special care (I9).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping

import msgspec

from edl.clock import Clock, SystemClock
from edl.coordination.election import leader_path, read_leader, strike_off_first
from edl.coordination.store import Create, Delete, Link, NodeExists, Store, StoreRefused
from edl.core.job.lead_times import LeadTimes, going_report_period_s, report_period_s
from edl.core.worker.next_move import are_newer
from edl.core.worker.observed_trainer import CALM_S
from edl.daemon.roll_caller import refuses
from edl.daemon.trainer_view import TrainerView
from edl.errors import JobFailed, PeerError, StoreUnavailable
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.assignment import Orders
from edl.transport.rpc import Client

logger = logging.getLogger("edl")

FIRST_REPORT_S = 0.05  # upper bound of a reported step's age, at first
RETRY_S = 0.1


class Candidacy(msgspec.Struct, frozen=True):
    """The settings with which a worker registers."""

    job: str
    secret: bytes
    register: say.Register
    session_timeout_s: float


class LeaderSession:
    """The conversation of one worker. `run` ends when the leader has durably accepted the worker's end."""

    def __init__(
        self, about: Candidacy, store: Store, observer: TrainerView, on_orders: Callable[[Orders], None]
    ) -> None:
        self._about = about
        self._clock = SystemClock()
        self._root = node_paths.root(about.job)
        self._store = store
        self._observer = observer
        self.orders: Orders | None = None  # the newest
        self._on_orders = on_orders
        self._stirred = asyncio.Event()
        self._urged = asyncio.Event()
        self._sent: say.Observation | None = None
        self._admitted = False
        self._end_is_known = False  # a leader has taken the news that the trainer is gone

    def stir(self, *, calm: bool = False) -> None:
        """Wake the report, as there is news. `calm`: the news may wait a moment for other news."""
        self._stirred.set()
        if not calm:
            self._urged.set()

    async def run(self) -> None:
        """Talk to one leader after the other. Raises JobFailed when none accepts this worker."""
        changed = asyncio.Event()
        watch = self._store.watch(leader_path(self._root), changed.set)
        try:
            while not await self._with_one_leader(changed):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await changed.wait()
        finally:
            watch.close()

    async def _with_one_leader(self, changed: asyncio.Event) -> bool:
        """Return True once the worker's end was reported; False: look for a leader again."""
        changed.clear()
        try:
            leader = await read_leader(self._store, self._root)
        except StoreUnavailable:
            return False
        if leader is None:
            return False
        worker, _, address = leader.ident.rpartition(" ")
        client = Client(self._about.secret, self._about.job, self._about.register.identity.id, address)
        try:
            return await self._converse(client, leader.term, changed)
        except PeerError as error:
            logger.debug("leader %s of term %d: %s", worker, leader.term, error)
            if self._observer.status.phase is say.Phase.BROKEN:
                await self._make_way()
            return False
        finally:
            await client.close()

    async def _make_way(self) -> None:
        """Remove dead candidates from the election, as a broken ring needs a leader at once."""
        # The old leader may have died, and others with it. A ring that trains needs no leader so soon.
        with contextlib.suppress(StoreUnavailable):
            await strike_off_first(self._store, self._root, _is_dead)

    async def _converse(self, client: Client, term: int, changed: asyncio.Event) -> bool:
        await self._admit(client, term)
        self._sent = None
        tasks = [
            asyncio.ensure_future(self._report(client, term)),
            asyncio.ensure_future(self._listen(client, term)),
            asyncio.ensure_future(changed.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return tasks[0] in done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _admit(self, client: Client, term: int) -> None:
        if self._admitted:
            return  # every leader knows the worker from the record
        reply = await self._call(client, term, self._about.register)
        if isinstance(reply, say.Rejected):
            raise JobFailed(reply.reason)
        self._admitted = True

    async def _report(self, client: Client, term: int) -> None:
        """Report until the worker's end was reported.

        News is sent at once, but the news of a completed planned switch a moment later: on hosts with few cores the
        report would take these from the first step of the ring, which all wait for. Mere progress is reported ever less
        often, since the leader can estimate it: on hosts whose cores are all busy with training, each report costs a
        trainer its time.
        """
        period_s = FIRST_REPORT_S
        while True:
            self._stirred.clear()
            self._urged.clear()
            observation, over = self._observer.observe(self._clock.now()), self._observer.status.over
            at_its_end = self._observer.is_at_its_end
            if _differs(observation, self._sent) and not (self._end_is_known and at_its_end):
                reply = await self._call(client, term, say.Report(observation))
                if isinstance(reply, say.Rejected) and reply.retry:
                    if self._end_is_known:  # what is left of the worker is not needed any more
                        return
                    raise JobFailed(f"the job's leader has given this worker up ({reply.reason})")
                self._sent, self._end_is_known = observation, over
            if at_its_end:
                return
            try:
                async with asyncio.timeout(period_s):
                    await self._stirred.wait()
                period_s = FIRST_REPORT_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CALM_S):
                        await self._urged.wait()
            except TimeoutError:
                period_s = min(2 * period_s, self._longest_period_s())

    def _longest_period_s(self) -> float:
        orders = self.orders
        if orders is None:
            return report_period_s(0)
        return going_report_period_s(orders.present) if orders.going else report_period_s(orders.present)

    async def _listen(self, client: Client, term: int) -> None:
        """Receive orders. Each call is held for a random time, so that not all workers of a job call again at once."""
        longest_s = LeadTimes.of(self._about.session_timeout_s).hold_s
        while True:
            hold_s = random.uniform(longest_s / 2, longest_s)  # noqa: S311 - no secret
            known = (self.orders.term, self.orders.version) if self.orders is not None else (0, 0)
            reply = await self._call(client, term, say.Await(*known, hold_s), hold_s)
            if isinstance(reply, say.Ordered) and are_newer(reply.orders, self.orders):
                begins_to_go = reply.orders.going and not (self.orders is not None and self.orders.going)
                self.orders = reply.orders
                self._on_orders(reply.orders)
                if begins_to_go:
                    self.stir()

    async def _call(self, client: Client, term: int, body: say.Request, hold_s: float = 0.0) -> say.Reply:
        deadline_s = hold_s + self._about.session_timeout_s / 2
        reply: say.Reply = await client.call(body, say.Reply, term=term, deadline_s=deadline_s)
        return reply


async def _is_dead(ident: str) -> bool:
    """Tell whether a candidate's host reports that no process listens at the candidate's address."""
    host, _, port = ident.rpartition(" ")[2].rpartition(":")
    return await refuses(host, int(port))


def _differs(observation: say.Observation, sent: say.Observation | None) -> bool:
    """Tell whether the observations differ in more than the trainer's usage."""
    return sent is None or msgspec.structs.replace(observation, usage=sent.usage, at=sent.at) != sent


class PresenceNode:
    def __init__(self, store: Store, clock: Clock, marks: Mapping[str, bytes]) -> None:
        """Watch the connection, which has just come. `marks`: the nodes and their values."""
        self._store = store
        self._clock = clock
        self._marks = marks
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = store.watch_link(self._on_link)
        self.restored_at = clock.now()
        """When the present connection to the coordinator was made."""

    async def begin(self) -> None:
        """Create the nodes in this session. Nodes of an earlier session of this daemon are replaced in one
        transaction.
        """
        for path, value in self._marks.items():
            try:
                await self._store.create(path, value, ephemeral=True)
            except NodeExists:
                await self._store.commit([Delete(path), Create(path, value, ephemeral=True)])

    def close(self) -> None:
        """Stop; the nodes stay until the session ends."""
        self._watch.close()

    def _on_link(self, link: Link) -> None:
        if link is Link.CONNECTED:
            self.restored_at = self._clock.now()
            self._tasks.add(task := asyncio.ensure_future(self._begin_again()))
            task.add_done_callback(self._tasks.discard)

    async def _begin_again(self) -> None:
        with contextlib.suppress(StoreUnavailable, StoreRefused):  # the link changes again, and this is called again
            nodes = [await self._store.read(path) for path in self._marks]
            if any(node is None or node.owner != self._store.session for node in nodes):
                await self.begin()
