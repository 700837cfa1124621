"""What only the real carrier can get wrong: proxies, processes that die, listeners that are not ours."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import grpc.aio
import msgspec
import pytest

from edl.errors import ConfigError
from edl.transport import rpc
from edl.transport.call_errors import DeadlineExceeded, Refusals, Unreachable
from edl.transport.rpc import METHOD, SERVICE, Client, Server
from edl.transport.seal import MAX_BYTES
from edl.transport.service import Call

pytestmark = pytest.mark.integration

SECRET = b"a secret of the job"

SERVER = """
import asyncio, msgspec, sys
from edl.transport.call_errors import Refusals
from edl.transport.rpc import Server

class Ping(msgspec.Struct, tag="ping"):
    pass

async def hang(call):
    print("called", flush=True)
    await asyncio.Event().wait()

async def main():
    server = Server(b"a secret of the job", "job", hang, request_types=Ping, refusals=Refusals())
    server.term = 1
    print(await server.start("127.0.0.1"), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    pass


async def echo(call: Call) -> msgspec.Struct:
    return Ping()


def make_server() -> Server:
    server, _ = make_counting_server()
    return server


def make_counting_server() -> tuple[Server, Refusals]:
    refusals = Refusals()
    server = Server(SECRET, "job", echo, request_types=Ping, refusals=refusals)
    server.term = 1
    return server, refusals


async def ping(client: Client, deadline_s: float = 10) -> Any:
    return await client.call(Ping(), Ping, term=1, deadline_s=deadline_s)


@pytest.fixture
async def server() -> AsyncIterator[str]:
    server = make_server()
    yield f"127.0.0.1:{await server.start('127.0.0.1')}"
    await server.stop()


class Calling:
    """A client that is closed at the end of a `with`."""

    def __init__(self, address: str) -> None:
        self._client = Client(SECRET, "job", "w1", address)

    async def __aenter__(self) -> Client:
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


async def test_no_proxy_of_the_environment_is_used(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with Calling(server) as client:
        assert await ping(client) == Ping()


async def test_a_peer_that_is_killed_during_a_call_is_unreachable_at_once() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    async with Calling(f"127.0.0.1:{port}") as client:
        call = asyncio.create_task(ping(client, deadline_s=60))
        assert await process.stdout.readline() == b"called\n"
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(Unreachable):
            await call
        assert time.monotonic() - killed < 5
    await process.wait()


async def test_a_peer_that_is_frozen_costs_the_deadline() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    process.send_signal(signal.SIGSTOP)
    async with Calling(f"127.0.0.1:{port}") as client:
        with pytest.raises((DeadlineExceeded, Unreachable)):
            await asyncio.wait_for(ping(client, deadline_s=0.3), 10)
    process.kill()
    await process.wait()


async def test_a_listener_that_says_nothing_costs_the_deadline_at_most() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        async with Calling(f"127.0.0.1:{silent.getsockname()[1]}") as client:
            with pytest.raises((DeadlineExceeded, Unreachable)):
                await asyncio.wait_for(ping(client, deadline_s=0.3), 10)


async def test_a_listener_that_speaks_another_language_is_unreachable() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with other, Calling(f"127.0.0.1:{other.sockets[0].getsockname()[1]}") as client:
        with pytest.raises((Unreachable, DeadlineExceeded)):
            await ping(client, deadline_s=1)


async def test_a_client_knocks_again_soon_after_its_leader_went_away() -> None:
    server = make_server()
    port = await server.start("127.0.0.1")
    knocked = asyncio.Event()

    def on_knock(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocked.set()
        writer.close()

    async with Calling(f"127.0.0.1:{port}") as client:
        await ping(client)
        await server.stop()
        for _ in range(10):  # each failure must not double the wait for the next attempt without end
            with pytest.raises(Unreachable):
                await ping(client)
        async with await asyncio.start_server(on_knock, "127.0.0.1", port):
            before = time.monotonic()
            while not knocked.is_set() and time.monotonic() - before < 20:
                with pytest.raises((Unreachable, DeadlineExceeded)):
                    await ping(client, deadline_s=0.2)
            assert time.monotonic() - before < 5


async def test_an_address_of_another_machine_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        await make_server().start("192.0.2.1")


async def test_only_the_given_address_listens() -> None:
    server = make_server()
    port = await server.start("127.0.0.1")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=2).close()
    await server.stop()


async def test_ipv6(server: str) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    six = make_server()
    try:
        port = await six.start("::1")
    except ConfigError:
        pytest.skip("no IPv6 here")
    async with Calling(f"[::1]:{port}") as client:
        assert await ping(client) == Ping()
    await six.stop()


async def test_a_thousand_workers_that_all_call_at_once_are_all_answered():
    server = make_server()
    address = f"127.0.0.1:{await server.start('127.0.0.1')}"
    clients = [Client(SECRET, "job", f"w{number}", address) for number in range(40)]
    calls = [client.call(Ping(), Ping, term=1, deadline_s=60) for client in clients for _ in range(60)]
    try:
        assert await asyncio.gather(*calls) == [Ping()] * len(calls)  # gRPC's own bound cancels some beyond 1,000
    finally:
        await asyncio.gather(*(client.close() for client in clients))
        await server.stop()


# ------------------------------------------------------------------------------------------------- what strangers try


async def stranger_hears(port: int, message: bytes, method: str = f"/{SERVICE}/{METHOD}", **options: Any) -> str:
    """The status of a call that ought to be refused."""
    unbounded = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=unbounded) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(method)(message, timeout=10, **options)
    return str(caught.value.code().name)


async def test_what_a_stranger_has_compressed_is_refused_as_it_came() -> None:
    """Unpacked it would be too much for gRPC, which refuses without a word to us."""
    server, refusals = make_counting_server()
    port = await server.start("127.0.0.1")
    assert await stranger_hears(port, bytes(4 * MAX_BYTES), compression=grpc.Compression.Gzip) == "FAILED_PRECONDITION"
    assert refusals.snapshot() == {"version": 1}
    await server.stop()


async def test_calls_of_methods_that_do_not_exist_are_counted() -> None:
    server, refusals = make_counting_server()
    port = await server.start("127.0.0.1")
    for method in (f"/{SERVICE}/Stop", "/grpc.health.v1.Health/Check"):
        assert await stranger_hears(port, b"", method) == "UNIMPLEMENTED"
    assert refusals.snapshot() == {"unknown_method": 2}
    await server.stop()


async def test_who_connects_and_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sooner = {**dict(rpc._SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": 300}
    assert sooner.keys() == dict(rpc._SERVER_OPTIONS).keys()  # a real server has a limit too, of ten seconds
    monkeypatch.setattr(rpc, "_SERVER_OPTIONS", list(sooner.items()))
    server = make_server()
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1"))
    try:
        async with asyncio.timeout(9):
            while await reader.read(1024):  # gRPC introduces itself
                pass
    finally:
        writer.close()
        await server.stop()
