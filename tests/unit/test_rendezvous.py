"""The rendezvous as Horovod's HTTP client sees it, and as a stranger does."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest

from edl.collectives import rendezvous as module
from edl.collectives.board import Board, Refusal, Refused, parse
from edl.collectives.rendezvous import Rendezvous
from edl.errors import ConfigError

MEMBERS = ("w1", "w2", "w3")
HASH = "_process_set_hash_1a2b3c"


class Client:
    """One request per connection, as Horovod sends it."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self.say(head.encode() + body)

    async def say(self, raw: bytes) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(raw)
        try:
            answer = await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        return int(head.split()[1]), body


@pytest.fixture
async def server() -> AsyncIterator[Rendezvous]:
    server = Rendezvous(MEMBERS, 4, hold_s=5)
    yield server
    await server.stop()


@pytest.fixture
async def client(server: Rendezvous) -> Client:
    return Client(await server.start("127.0.0.1"))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server has no event for what only tests look at
        await asyncio.sleep(0)


def waiting(server: Rendezvous) -> int:
    return sum(map(len, server._waiting.values()))


# --------------------------------------------------------------------------------------------- what Horovod asks


async def test_each_member_learns_its_place_in_the_flat_topology(client: Client) -> None:
    assert await client.ask("GET", "/rank_and_size/w2:0") == (200, b"1,3,0,1,0,1")


async def test_a_stranger_learns_that_it_is_not_in_this_job(client: Client) -> None:
    """Without an answer Horovod would take itself for rank 0."""
    for name in ("w4:0", "w1:1", "w1"):
        assert await client.ask("GET", f"/rank_and_size/{name}") == (200, b"-1,-1,-1,-1,-1,-1")


async def test_a_key_that_is_there_is_given(client: Client) -> None:
    assert await client.ask("PUT", "/global/1", b"address") == (200, b"")
    assert await client.ask("GET", "/global/1") == (200, b"address")
    assert await client.ask("GET", "/global" + HASH + "/rank_1") == (404, b"")


async def test_a_key_that_is_not_there_yet_is_waited_for_by_all_who_ask(client: Client, server: Rendezvous) -> None:
    asking = [asyncio.create_task(client.ask("GET", f"/global{HASH}/2")) for _ in range(5)]
    await until(lambda: waiting(server) == 5)
    assert await client.ask("PUT", f"/global{HASH}/2", b"address") == (200, b"")
    assert await asyncio.gather(*asking) == [(200, b"address")] * 5
    assert server._waiting == {}


async def test_a_key_that_does_not_come_is_404_in_time() -> None:
    server = Rendezvous(MEMBERS, 4, hold_s=0.05)
    client = Client(await server.start("127.0.0.1"))
    assert await client.ask("GET", "/global/2") == (404, b"")
    assert await client.ask("PUT", "/global/2", b"late") == (200, b"")
    assert await client.ask("GET", "/global/2") == (200, b"late")
    assert server.refusals() == {}
    await server.stop()


async def test_a_host_name_is_not_waited_for(client: Client) -> None:
    """Gloo asks once, before the others have told theirs, and does nothing with it."""
    assert await client.ask("GET", "/global/rank_2") == (404, b"")


async def test_what_all_have_finished_takes_no_room(client: Client, server: Rendezvous) -> None:
    for rank in range(3):
        for key in (f"rank_{rank}", f"{rank}"):
            await client.ask("PUT", f"/global/{key}", b"x")
    for rank in range(3):
        assert await client.ask("DELETE", f"/global/{rank}") == (200, b"")
    assert await client.ask("DELETE", "/global/0") == (200, b"")
    assert server._board._scopes == {}
    assert server._board._bytes == 0


async def test_who_was_heard_from_and_who_was_not(client: Client, server: Rendezvous) -> None:
    await client.ask("PUT", "/global/rank_0", b"host")
    await client.ask("PUT", "/local_w3/0", b"")
    assert server.addresses == {0: "127.0.0.1"}
    assert server.missing() == ("w2", "w3")


async def test_an_asker_that_goes_away_is_forgotten(client: Client, server: Rendezvous) -> None:
    asking = asyncio.create_task(client.ask("GET", "/global/2"))
    await until(lambda: len(server._waiting) > 0)
    asking.cancel()
    await until(lambda: not server._waiting and not server._connections)
    assert await client.ask("PUT", "/global/2", b"x") == (200, b"")


async def test_stopping_cuts_those_who_wait(client: Client, server: Rendezvous) -> None:
    asking = asyncio.create_task(client.ask("GET", "/global/2"))
    await until(lambda: len(server._waiting) > 0)
    await server.stop()
    await server.stop()
    with pytest.raises((ConnectionResetError, AssertionError)):
        await asking
    with pytest.raises(ConnectionRefusedError):
        await client.ask("GET", "/global/2")


async def test_whoever_connects_while_the_server_stops_is_cut_too() -> None:
    """Python 3.11's own server leaves such a connection open until the garbage collector comes by."""
    gc.disable()
    try:
        for _ in range(20):
            server = Rendezvous(MEMBERS, 1)
            client = Client(await server.start("127.0.0.1"))
            asking = [asyncio.create_task(client.ask("GET", "/global/2")) for _ in range(5)]
            await until(lambda: server._acceptor is not None and bool(server._acceptor._connecting))  # noqa: B023
            await server.stop()
            assert all(isinstance(one, Exception) for one in await asyncio.gather(*asking, return_exceptions=True))
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/worker_addresses/1"),
        ("PUT", "/runfunc/func"),
        ("PUT", "/rank_and_size/w1:0"),
        ("PUT", "/global/3"),
        ("PUT", "/global/-1"),
        ("PUT", "/global/01"),
        ("PUT", "/local_w4/0"),
        ("PUT", "/local_w1/1"),
        ("PUT", "/cross_1/0"),
        ("GET", "/global_process_set_hash_xyz/0"),
        ("DELETE", "/global/9"),
    ],
)
async def test_keys_that_no_member_uses_are_refused(client: Client, server: Rendezvous, method: str, path: str) -> None:
    assert await client.ask(method, path) == (403, b"")
    assert server.refusals() == {"unknown": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /global/1 HTTP/1.1\r\n\r\n",
        b"GET /global HTTP/1.1\r\n\r\n",
        b"GET /a/b/c HTTP/1.1\r\n\r\n",
        b"GET /global/1 HTTP/2\r\n\r\n",
        b"PUT /global/1 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /global/1 HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
async def test_what_is_not_horovods_http_is_refused(client: Client, server: Rendezvous, raw: bytes) -> None:
    assert (await client.say(raw))[0] == 400
    assert server.refusals() == {"malformed": 1}


async def test_refusals_are_told_to_whoever_outlives_the_server() -> None:
    told: list[str] = []
    server = Rendezvous(MEMBERS, 4, on_refused=told.append)
    client = Client(await server.start("127.0.0.1"))
    await client.ask("PUT", "/runfunc/func")
    await client.say(b"POST /global/1 HTTP/1.1\r\n\r\n")
    await server.stop()
    assert told == ["unknown", "malformed"]


async def test_what_is_too_large_is_refused(client: Client, server: Rendezvous) -> None:
    assert (await client.say(b"PUT /global/1 HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"))[0] == 413
    assert (await client.say(b"GET /" + b"x" * 9000))[0] == 413
    assert server.refusals() == {"oversized": 2}


async def test_half_a_request_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.05)
    server = Rendezvous(MEMBERS, 1)
    client = Client(await server.start("127.0.0.1"))
    assert await client.say(b"GET /global/1") == (408, b"")
    assert server.refusals() == {"slow": 1}
    await server.stop()


async def test_a_request_may_come_in_pieces(client: Client, server: Rendezvous) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", client._port)
    for piece in (b"PUT /global/1 HT", b"TP/1.1\r\nContent-Length: 5\r\n\r\nab", b"cde"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)  # so that the pieces travel apart
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    assert await client.ask("GET", "/global/1") == (200, b"abcde")


async def test_too_many_connections_are_cut(client: Client, server: Rendezvous) -> None:
    server._max_connections = 2
    asking = [asyncio.create_task(client.ask("GET", "/global/2")) for _ in range(2)]
    await until(lambda: waiting(server) == 2)
    with pytest.raises((ConnectionResetError, AssertionError)):
        await client.ask("GET", "/rank_and_size/w1:0")
    assert server.refusals() == {"full": 1}
    server._max_connections = 9
    await client.ask("PUT", "/global/2", b"x")
    await asyncio.gather(*asking)


async def test_an_address_of_another_machine_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        await Rendezvous(MEMBERS, 1).start("192.0.2.1")


# ------------------------------------------------------------------------------------------------------ the board


@pytest.mark.parametrize("members", [(), ("a", "a"), ("a/b",), ("",), ("a b",), ("a#",)])
def test_names_that_do_not_fit_a_url_are_a_mistake(members: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="members"):
        Board(members)


def test_all_that_is_written_together_has_a_bound() -> None:
    board = Board(["w1"])
    value = bytes(board.max_value)
    with pytest.raises(Refused) as caught:
        write_without_end(board, value)
    assert caught.value.refusal is Refusal.FULL


def write_without_end(board: Board, value: bytes) -> None:
    for number in range(100_000):
        board.put(f"global_process_set_hash_{number:x}", "0", value)


def test_one_value_has_a_bound() -> None:
    board = Board(["w1"])
    with pytest.raises(Refused) as caught:
        board.put("global", "0", bytes(board.max_value + 1))
    assert caught.value.refusal is Refusal.OVERSIZED


def test_what_is_written_twice_counts_once() -> None:
    board = Board(["w1"])
    for _ in range(100_000):
        board.put("global", "0", bytes(1000))
    assert board.get("global", "0") == bytes(1000)


def test_an_incomplete_request_is_no_request() -> None:
    raw = b"PUT /global/1 HTTP/1.1\r\ncontent-length:  5\r\n\r\nabcde"
    assert all(parse(bytearray(raw[:end]), 100) is None for end in range(len(raw)))
    request = parse(bytearray(raw), 100)
    assert request is not None
    assert (request.method, request.scope, request.key, request.body) == ("PUT", "global", "1", b"abcde")
