"""A session goes on trying, whatever stands in the way of one attempt."""

from __future__ import annotations

import asyncio

import pytest

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.etcd import etcd_session as under_test
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_messages import (
    LEASE_GRANT,
    LeaseGrantResponse,
    Method,
    RangeResponse,
    ResponseHeader,
    ResponseOp,
    TxnResponse,
)
from edl.coordination.etcd.etcd_session import Session
from edl.coordination.etcd.etcd_transactions import KeyLayout
from edl.coordination.store import Link
from edl.errors import StoreUnavailable


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "RECONNECT_MAX_S", 0.001)


class Server:
    """Grants leases and takes every transaction; what it says of its streams is that they end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> None:
        self.failures = list(failures)
        self.opened = 0
        monkeypatch.setattr(EtcdConnection, "open", self._open)
        monkeypatch.setattr(EtcdConnection, "call", self._call)
        monkeypatch.setattr(EtcdConnection, "stream", lambda *_: None)
        monkeypatch.setattr(Session, "_stay", self._stay)

    async def _open(self) -> None:
        self.opened += 1
        if self.failures:
            raise self.failures.pop(0)

    async def _call(self, method: Method[object, object], _: object, **__: object) -> object:
        header = ResponseHeader(1, 1, 1)
        if method is LEASE_GRANT:
            return LeaseGrantResponse(header, 5, 4)
        return TxnResponse(header, True, (ResponseOp(RangeResponse()),))  # no session of before

    async def _stay(self, _: EtcdConnection) -> None:
        await asyncio.Event().wait()


def began(links: list[Link]) -> Session:
    return Session(Coordinator("etcd://h:2379"), KeyLayout("/edl"), 4.0, links.append)


@pytest.mark.parametrize("failure", [PermissionError("ca.pem"), TimeoutError(), StoreUnavailable("away")])
async def test_it_outlives_what_keeps_it_from_connecting(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """TLS files that are exchanged just now cannot be read for a moment."""
    server = Server(monkeypatch, failure, failure)
    links: list[Link] = []
    session = began(links)
    async with asyncio.timeout(10):
        await session.begin()
    assert server.opened == 3
    assert links == [Link.CONNECTED]
    await session.end()


async def test_a_server_that_ends_each_connection_is_not_asked_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def pause(delay: float) -> None:
        pauses.append(delay)
        if len(pauses) == 4:
            enough.set()
            await asyncio.Event().wait()

    async def refuses(*_: object) -> None:
        raise StoreUnavailable("the coordinator refuses a watch")

    Server(monkeypatch)
    monkeypatch.setattr(Session, "_stay", refuses)
    monkeypatch.setattr(asyncio, "sleep", pause)
    session = began([])
    await session.begin()
    async with asyncio.timeout(10):
        await enough.wait()
    assert pauses[0] == 0 < min(pauses[1:])
    await session.end()
