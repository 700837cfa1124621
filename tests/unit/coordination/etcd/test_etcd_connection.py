"""A connection's token: renewed once, and no call is a stranger's meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_messages import (
    AUTHENTICATE,
    RANGE,
    AuthenticateResponse,
    KeyValue,
    RangeRequest,
    RangeResponse,
)
from edl.errors import StoreUnavailable

ME = Coordinator("etcd://h:2379", Digest("edl", "mine"))
CODE = grpc.StatusCode


def refused(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), f"etcdserver: {details}")


class Guard:
    """A channel to a server that gives tokens, and goes by the newest only."""

    def __init__(self) -> None:
        self.given = 0
        self.open_to_all = False
        self.silent = False  # to those who ask for a token

    def unary_unary(self, path: str, **_: object) -> Any:
        async def called(_: object, *, metadata: tuple[tuple[str, str], ...], **__: float) -> object:
            await asyncio.sleep(0)
            if path == AUTHENTICATE.path:
                return await self._token(metadata)
            if not self.open_to_all and not metadata:
                raise refused(CODE.INVALID_ARGUMENT, "user name is empty")
            if not self.open_to_all and metadata != (("token", f"t{self.given}"),):
                raise refused(CODE.UNAUTHENTICATED, "invalid auth token")
            return RangeResponse(kvs=(KeyValue(b"a"),))

        return called

    async def _token(self, metadata: tuple[tuple[str, str], ...]) -> AuthenticateResponse:
        assert metadata == (), "an old token is shown to who gives a new one"
        for _ in range(20):  # others call meanwhile
            await asyncio.sleep(0)
        if self.silent:
            raise refused(CODE.DEADLINE_EXCEEDED, "no answer")
        if self.open_to_all:
            raise refused(CODE.FAILED_PRECONDITION, "authentication is not enabled")
        self.given += 1
        return AuthenticateResponse(f"t{self.given}")

    def forget(self) -> None:
        """As a server does that was started anew."""
        self.given += 1


@pytest.fixture
async def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    one = Guard()
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda *_, **__: one)
    return one


async def read(connection: EtcdConnection) -> int:
    return len((await connection.call(RANGE, RangeRequest(b"a"), timeout_s=5)).kvs)


async def opened() -> EtcdConnection:
    connection = EtcdConnection(("h", 2379), ME, patience_s=5)
    await connection.open()
    return connection


async def test_calls_that_begin_while_the_token_is_renewed_wait_for_it(guard: Guard) -> None:
    connection = await opened()
    guard.forget()
    given = guard.given

    async def later(ticks: int) -> int:
        for _ in range(ticks):
            await asyncio.sleep(0)
        return await read(connection)

    assert await asyncio.gather(*(later(ticks) for ticks in range(40))) == [1] * 40
    assert guard.given == given + 1


async def test_a_token_that_could_not_be_renewed_is_renewed_by_the_next_call(guard: Guard) -> None:
    connection = await opened()
    guard.forget()
    guard.silent = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await read(connection)
    guard.silent = False
    assert await read(connection) == 1


async def test_where_passwords_are_switched_off_no_token_is_shown_any_more(guard: Guard) -> None:
    guard.open_to_all = True
    connection = await opened()
    assert not connection.known
    assert await read(connection) == 1
