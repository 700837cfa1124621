"""The store port on etcd v3.

Owns: translating the port's calls into transactions, and retrying them when another client wrote in between. Does not
own: the form of a transaction (`planning`), the session (`session`), nor why a server cannot be reached (`diagnosis`).

A write takes two requests: the nodes that it touches are read, at one revision, and the change is made on condition
that they are unchanged (I1: the fence is one of them). If the condition fails, nothing was done, and the same write is
planned anew. If no answer comes, the write may have been done, and the caller gets StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.dialing import CallLimit, explain, tls_context
from edl.coordination.etcd import etcd_transactions
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_messages import (
    RANGE,
    TXN,
    KeyValue,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)
from edl.coordination.etcd.etcd_session import Session
from edl.coordination.etcd.etcd_transactions import (
    DEFAULT_PREFIX,
    EtcdPlan,
    KeyLayout,
    Seen,
    Snapshot,
    name_in,
    to_node,
)
from edl.coordination.store import (
    Link,
    Op,
    StoredNode,
    Watch,
    check_path,
)
from edl.coordination.store_state import Results
from edl.coordination.tree_store import TreeStore
from edl.errors import ConfigError, StoreUnavailable

_IN_FLIGHT = 64

_READ_AT_ONCE = 40
"""Paths in one request: each takes up to three operations, of which etcd allows 128 by default."""

_MEET_AGAIN_S = 0.02
"""Longest random pause before a retry, so that clients that write to the same nodes do not retry in step."""

Planner = Callable[[Snapshot], EtcdPlan]


async def connect(settings: Coordinator, session_timeout_s: float, *, connect_timeout_s: float = 10.0) -> EtcdStore:
    """Open a store with a new session, which expires after `session_timeout_s`, rounded up to a second, without a sign
    of life.

    Raises `ConfigError` with one line that names the address and the remedy if there is no session in time.
    """
    try:
        if settings.tls:
            tls_context(settings.tls)  # gRPC would only fail to connect
    except OSError as error:
        raise ConfigError(f"the TLS settings EDL_COORDINATOR_TLS_* do not work: {error.strerror or error}") from error
    store = EtcdStore(settings, session_timeout_s)
    try:
        async with asyncio.timeout(connect_timeout_s):
            await store._session.begin()
    except TimeoutError as error:
        await store.close()
        raise ConfigError(f"{await explain(settings)} (tried for {connect_timeout_s:g} s)") from error
    except BaseException:
        await store.close()
        raise
    return store


class EtcdStore(TreeStore):
    """A store with one session at a time at etcd; `edl.coordination.store.Store` has every guarantee."""

    def __init__(self, settings: Coordinator, session_timeout_s: float) -> None:
        super().__init__(Link.LOST)
        self._settings = settings
        self._session_timeout_s = session_timeout_s
        self._pid = os.getpid()
        self._layout = KeyLayout(settings.chroot or DEFAULT_PREFIX)
        self._reads = CallLimit(_IN_FLIGHT, session_timeout_s)
        self._writes = CallLimit(
            1, session_timeout_s
        )  # carries out writes in the order of their calls, as ZooKeeper does
        self._session = Session(settings, self._layout, session_timeout_s, self._move)

    @property
    def link(self) -> Link:
        return self._session.link

    @property
    def session(self) -> int:
        return self._session.id

    # ------------------------------------------------------------------------------------------------- the port

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        check_path(path)
        return self._session.watches.add(path, wake)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:  # a forked child has the connection, but no business with it
                await self._session.end()

    # --------------------------------------------------------------------------------------------------- reading

    async def _read(self, path: str) -> StoredNode | None:
        found = await self._range(RangeRequest(self._layout.node(path)), path)
        return to_node(found.kvs[0]) if found.kvs else None

    async def _children(self, path: str) -> tuple[str, ...]:
        first, end = self._layout.children(path)
        found = await self._range(RangeRequest(first, end, keys_only=True), path)
        return tuple(sorted(name_in(kv.key) for kv in found.kvs))

    async def _range(self, request: RangeRequest, path: str) -> RangeResponse:
        async with self._reached(self._reads) as connection:
            found = await connection.call(RANGE, request, timeout_s=self._session_timeout_s, path=path)
        self._session.saw(found.header)
        return found

    @asynccontextmanager
    async def _reached(self, turns: CallLimit) -> AsyncIterator[EtcdConnection]:
        """Yield the connection, with a bound on the calls in flight; every error comes out as an error of the port."""
        async with turns.call(self._settings.hosts, closed=self._closed):
            yield self._session.connection

    # --------------------------------------------------------------------------------------------------- writing

    async def _commit(self, ops: tuple[Op, ...], *, fence: str | None = None, parents: bool = False) -> Results:
        if not ops and fence is None:
            return ()
        paths = etcd_transactions.touched(ops, fence)
        if parents:
            paths |= dict.fromkeys(etcd_transactions.ancestors(ops[0].path), False)

        def decided(snapshot: Snapshot) -> EtcdPlan:
            whole = etcd_transactions.with_parents(ops[0], snapshot) if parents else ops
            return etcd_transactions.plan(self._layout, snapshot, whole, fence, self.session)

        return (await self._change(fence or ops[0].path, paths, decided))[-len(ops) :]

    async def _change(self, path: str, paths: dict[str, bool], decided: Planner) -> Results:
        """Read, plan, and write if nothing has changed; else start again."""
        async with self._reached(self._writes) as connection:
            while True:
                plan = decided(await self._look(connection, paths, path))
                if not plan.request.success:
                    return plan.results
                answer = await self._ask(connection, plan.request, path)
                if answer.succeeded:
                    return plan.results
                paths = paths | dict.fromkeys(plan.numbered, False)
                await self._check_session(connection)
                await asyncio.sleep(random.uniform(0, _MEET_AGAIN_S))  # noqa: S311

    async def _check_session(self, connection: EtcdConnection) -> None:
        """Raise StoreUnavailable if the session is over: then every write fails its comparison."""
        look = RequestOp(request_range=RangeRequest(self._layout.session(self.session), count_only=True))
        answer = await self._ask(connection, TxnRequest(success=(look,)), "/")
        if not _found(answer, 0).count:
            self._session.gone()
            raise StoreUnavailable("the session with the coordinator is over")

    async def _look(self, connection: EtcdConnection, paths: dict[str, bool], path: str) -> dict[str, Seen]:
        """Read all these paths at one revision."""
        seen: dict[str, Seen] = {}
        revision, wanted = 0, list(paths.items())
        for begin in range(0, len(wanted), _READ_AT_ONCE):
            some = wanted[begin : begin + _READ_AT_ONCE]
            ranges = [one for asked, below in some for one in self._ranges(asked, below, revision)]
            requests = tuple(RequestOp(request_range=one) for one in ranges)
            answer = await self._ask(connection, TxnRequest(success=requests), path)
            revision = revision or answer.header.revision
            answers = (_found(answer, number).kvs for number in range(len(ranges)))
            for asked, below in some:
                node, count = next(answers), next(answers)
                children = frozenset(name_in(kv.key) for kv in next(answers)) if below else frozenset()
                seen[asked] = Seen(_only(node), _only(count), children)
        return seen

    def _ranges(self, path: str, below: bool, revision: int) -> Iterator[RangeRequest]:
        yield RangeRequest(self._layout.node(path), revision=revision)
        yield RangeRequest(self._layout.count(path), revision=revision)
        if below:
            first, end = self._layout.children(path)
            yield RangeRequest(first, end, revision=revision, keys_only=True)

    async def _ask(self, connection: EtcdConnection, request: TxnRequest, path: str) -> TxnResponse:
        answer = await connection.call(TXN, request, timeout_s=self._session_timeout_s, path=path)
        self._session.saw(answer.header)
        return answer


def _found(answer: TxnResponse, number: int) -> RangeResponse:
    found = answer.responses[number].response_range
    return RangeResponse() if found is None else found


def _only(kvs: tuple[KeyValue, ...]) -> KeyValue | None:
    return kvs[0] if kvs else None
