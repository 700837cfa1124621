"""A job seen and steered from outside: what the command line, a launcher or a scheduler holds of it.

Owns: asking the leader, and reading what it has left in the coordinator when nobody leads. Does not own: its looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

import msgspec

from edl import events
from edl.coordination import zookeeper
from edl.coordination.election import Leader, read_leader
from edl.coordination.settings import Coordinator
from edl.coordination.store import Store
from edl.core.horizon import Horizon
from edl.core.job import OVER, JobMachine
from edl.core.report import status_of
from edl.errors import JobFailed, PeerError, ScaleRejected, StoreUnavailable
from edl.events import Event
from edl.protocol import messages as say
from edl.protocol import tree
from edl.protocol.job import Record, Status
from edl.runtime.access import shared_secret, with_secret
from edl.transport.rpc import Client

SESSION_S = 10.0
ANSWER_S = 2.0
RETRY_S = 0.1
NAME = "command-line"


class JobClient:
    """One job. Use it as an async context."""

    def __init__(self, coordinator: Coordinator, job: str, secret: bytes = b"") -> None:
        self._coordinator = with_secret(coordinator, secret)
        self._job = job
        self._secret = secret
        self._store: Store | None = None
        self._client: tuple[str, Client] | None = None

    async def __aenter__(self) -> JobClient:
        """Raises ConfigError when the coordinator cannot be reached."""
        self._store = await zookeeper.connect(self._coordinator, SESSION_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client[1].close()
        await self._opened().close()

    async def status(self) -> Status:
        """The job as its leader sees it; as the last one left it when nobody answers. Raises JobFailed, PeerError."""
        record = await self._record()
        if record.state not in OVER:
            try:
                reply = await self._ask(say.AskStatus(), ANSWER_S)
            except PeerError:
                pass  # between two leaders, or after the last: the record is what there is
            else:
                if isinstance(reply, say.Told):
                    return reply.status
        leader = await read_leader(self._opened(), tree.root(self._job))
        machine = JobMachine(record, Horizon.of(SESSION_S))
        term, ident = (leader.term, leader.ident.partition(" ")[0]) if leader else (0, "")
        return status_of(machine, term, ident, {})

    async def events(self, after: int = 0) -> tuple[int, list[Event]]:
        """Events beyond the first `after`, oldest first, and the number to ask with next time."""
        store, folder = self._opened(), tree.events(self._job)
        names = sorted(await store.children(folder))
        nodes = [await store.read(f"{folder}/{name}") for name in names[after:]]
        return len(names), [events.decode(node.value) for node in nodes if node is not None]

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """Events as they happen, until the job is over."""
        changed = asyncio.Event()
        watch = self._opened().watch(tree.events(self._job), changed.set)
        try:
            while True:
                changed.clear()
                after, found = await self.events(after)
                for event in found:
                    yield event
                if (await self._record()).state in OVER and not found:
                    return
                await changed.wait()
        finally:
            watch.close()

    async def stop(self, reason: str, timeout_s: float = 30.0) -> None:
        """End the job. Raises PeerError when no leader takes the request in time."""
        await self._insist(say.AskStop(reason), timeout_s)

    async def scale(self, size: int, timeout_s: float = 30.0) -> None:
        """Ask for `size` workers. Raises ScaleRejected with the reason."""
        reply = await self._insist(say.AskScale(size), timeout_s)
        if isinstance(reply, say.Rejected):
            raise ScaleRejected(reply.reason)

    # ----------------------------------------------------------------------------------------------------- the inside

    async def _record(self) -> Record:
        node = await self._opened().read(tree.record(self._job))
        if node is None:
            raise JobFailed(
                f"there is no job {self._job} at {self._coordinator.hosts}: `edl status` lists those known here"
            )
        return msgspec.json.decode(node.value, type=Record)

    async def _insist(self, body: say.Request, timeout_s: float) -> say.Reply:
        """Ask until some leader answers."""
        last: Exception | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._ask(body, timeout_s)
                    except (PeerError, StoreUnavailable) as error:
                        last = error
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise PeerError(f"no leader of job {self._job} answered within {timeout_s:g} s ({last})") from last

    async def _ask(self, body: say.Request, deadline_s: float) -> say.Reply:
        leader = await read_leader(self._opened(), tree.root(self._job))
        if leader is None:
            raise PeerError(f"job {self._job} has no leader yet")
        client = await self._connected(leader)
        reply: say.Reply = await client.call(body, say.Reply, term=leader.term, generation=0, deadline_s=deadline_s)
        return reply

    async def _connected(self, leader: Leader) -> Client:
        address = leader.ident.rpartition(" ")[2]
        if self._client is None or self._client[0] != address:
            if self._client is not None:
                await self._client[1].close()
            self._secret = await shared_secret(self._opened(), self._job, self._secret)
            self._client = (address, Client(self._secret, self._job, NAME, address))
        return self._client[1]

    def _opened(self) -> Store:
        if self._store is None:
            raise RuntimeError("JobClient is an async context: use `async with`")
        return self._store
