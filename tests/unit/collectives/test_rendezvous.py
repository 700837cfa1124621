"""The rendezvous as Horovod's HTTP client sees it, and as a stranger does."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from edl.collectives import rendezvous as module
from edl.collectives.gloo_addresses import WIDTH, laid_out, split
from edl.collectives.rendezvous import HOROVODS_PORT, Rendezvous
from edl.collectives.rendezvous_board import SCOPES, Refusal, RendezvousBoard, RequestRefused, parse
from edl.errors import ConfigError

HASH = "_process_set_hash_1a2b3c"


class Client:
    """One request per connection, as Horovod sends it: `address` is what it takes for its server's."""

    def __init__(self, address: str) -> None:
        self.host, _, self.token = f"{address}:{HOROVODS_PORT}".partition("/")

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        return await self.ask_plainly(method, f"/{self.token}{path}", body)

    async def ask_plainly(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Without the token."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self.say(head.encode() + body)

    async def say(self, raw: bytes) -> tuple[int, bytes]:
        reader, writer = await self.connect()
        writer.write(raw)
        try:
            answer = await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        return int(head.split()[1]), body

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.host.partition(":")
        return await asyncio.open_connection(host, int(port))


class Daemon:
    """What the trainer has said."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.parcels: dict[str, Sequence[bytes]] = {}

    def began(self, mesh: str) -> None:
        self.begun.append(mesh)

    def wrote(self, mesh: str, parcels: Sequence[bytes]) -> None:
        self.parcels[mesh] = parcels


def serving(daemon: Daemon | None = None, hold_s: float = 5, **more: Callable[[Refusal], None]) -> Rendezvous:
    """Rank 1 of three."""
    return Rendezvous("w2", 1, 3, daemon or Daemon(), hold_s=hold_s, **more)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
async def server(daemon: Daemon) -> AsyncIterator[Rendezvous]:
    server = serving(daemon)
    yield server
    await server.stop()


@pytest.fixture
async def client(server: Rendezvous) -> Client:
    return Client(server.open())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server has no event for what only tests look at
        await asyncio.sleep(0)


def address(port: int, rest: bytes = bytes(112)) -> bytes:
    """As gloo writes it: what follows the address proper is what lay on its stack."""
    return struct.pack("=HH4s8s", socket.AF_INET, socket.htons(port), socket.inet_aton("10.0.0.7"), b"") + (
        rest + b"\xff" * 8
    )


# --------------------------------------------------------------------------------------------- what Horovod asks


async def test_each_member_learns_its_place_in_the_flat_topology(client: Client) -> None:
    assert await client.ask("GET", "/rank_and_size/w2:0") == (200, b"1,3,0,1,0,1")


async def test_a_worker_of_another_job_learns_that_it_is_not_in_this_one(client: Client) -> None:
    """Without an answer Horovod would take itself for rank 0."""
    for name in ("w1:0", "w2:1", "w2"):
        assert await client.ask("GET", f"/rank_and_size/{name}") == (200, b"-1,-1,-1,-1,-1,-1")


async def test_what_the_trainer_has_for_others_is_handed_on(client: Client, daemon: Daemon) -> None:
    assert await client.ask("PUT", "/global/rank_1", b"host") == (200, b"")
    assert daemon.begun == ["global"]
    assert daemon.parcels == {}
    assert await client.ask("PUT", "/global/1", address(1, b"s" * 112) + address(3)) == (200, b"")
    first, own, last = daemon.parcels["global"]
    assert (first, own, last) == (address(1)[:8], b"", address(3)[:8]), "and nothing of its stack"
    assert await client.ask("PUT", f"/global{HASH}/1", address(5) + address(7)) == (200, b"")
    assert daemon.begun == ["global", "global" + HASH]


async def test_what_comes_from_another_is_where_gloo_looks_for_it(client: Client, server: Rendezvous) -> None:
    await client.ask("PUT", "/global/rank_1", b"host")
    server.deliver("global", {0: address(70)[:8]})
    server.deliver("global", {2: address(72)[:8]})
    assert await client.ask("GET", "/global/0") == (200, address(70) + bytes(WIDTH))  # rank 0 has us before rank 2
    assert await client.ask("GET", "/global/2") == (200, bytes(WIDTH) + address(72))


async def test_the_meshes_of_one_member_need_no_other(client: Client, daemon: Daemon) -> None:
    for scope in ("local_w2", "cross_0", "local_w2" + HASH, "cross_0" + HASH):
        assert await client.ask("PUT", f"/{scope}/rank_0", b"host") == (200, b"")
        assert await client.ask("PUT", f"/{scope}/0", b"") == (200, b"")
        assert await client.ask("DELETE", f"/{scope}/0") == (200, b"")
    assert daemon.begun == []


async def test_a_key_that_is_not_there_yet_is_waited_for_by_all_who_ask(client: Client, server: Rendezvous) -> None:
    await client.ask("PUT", f"/global{HASH}/rank_1", b"host")
    asking = [asyncio.create_task(client.ask("GET", f"/global{HASH}/2")) for _ in range(5)]
    await until(lambda: server.awaited == {2})
    await client.ask("GET", "/rank_and_size/w2:0")  # connections are accepted in their order, so all five wait
    server.deliver("global" + HASH, {2: b"it"})
    assert await asyncio.gather(*asking) == [(200, b"\0\0it")] * 5
    assert server.awaited == frozenset()


async def test_a_key_that_does_not_come_is_404_in_time() -> None:
    server = serving(hold_s=0.05)
    client = Client(server.open())
    await client.ask("PUT", "/global/rank_1", b"host")
    assert await client.ask("GET", "/global/2") == (404, b"")
    server.deliver("global", {2: b"late"})
    assert await client.ask("GET", "/global/2") == (200, b"\0\0\0\0late")
    assert server.refusals() == {}
    await server.stop()


async def test_a_host_name_is_not_waited_for(client: Client) -> None:
    """Gloo asks once, before the others have told theirs, and does nothing with it."""
    assert await client.ask("GET", "/global/rank_2") == (404, b"")


async def test_what_the_trainer_has_finished_is_kept_no_longer() -> None:
    server = serving(hold_s=0.05)
    client = Client(server.open())
    await client.ask("PUT", "/global/1", address(1) + address(3))
    server.deliver("global", {0: b"it"})
    for _ in range(2):
        assert await client.ask("DELETE", "/global/1") == (200, b"")
    server.deliver("global", {2: b"late"})
    for rank in range(3):
        assert await client.ask("GET", f"/global/{rank}") == (404, b"")
    await server.stop()


async def test_an_asker_that_goes_away_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 1)
    server = serving()
    client = Client(server.open())
    await client.ask("PUT", "/global/rank_1", b"host")
    asking = asyncio.create_task(client.ask("GET", "/global/2"))
    await until(lambda: server.awaited == {2})
    asking.cancel()
    await until(lambda: server.awaited == frozenset())
    server.deliver("global", {2: b"x"})
    assert await client.ask("GET", "/global/2") == (200, b"\0x")
    assert server.refusals() == {}
    await server.stop()


async def test_stopping_cuts_those_who_wait(client: Client, server: Rendezvous) -> None:
    asking = asyncio.create_task(client.ask("GET", "/global/2"))
    await until(lambda: server.awaited == {2})
    await server.stop()
    await server.stop()
    with pytest.raises((ConnectionResetError, AssertionError)):
        await asking
    with pytest.raises(ConnectionRefusedError):
        await client.ask("GET", "/global/2")


async def test_a_client_that_connects_while_the_server_stops_is_cut_too() -> None:
    """Python 3.11's own server leaves such a connection open until the garbage collector comes by."""
    gc.disable()
    try:
        for turns_of_the_loop in range(20):  # at some of them a connection is accepted and has no protocol yet
            server = serving()
            client = Client(server.open())
            asking = [asyncio.create_task(client.ask("GET", "/global/2")) for _ in range(5)]
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
            await server.stop()
            assert all(isinstance(one, Exception) for one in await asyncio.gather(*asking, return_exceptions=True))
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------ what is refused


async def test_only_this_machine_is_listened_to(client: Client) -> None:
    assert client.host.startswith("127.0.0.1:")


@pytest.mark.parametrize("token", ["", "guess", "guess:0", "\x7f"])
async def test_a_stranger_can_neither_write_nor_read(
    client: Client, server: Rendezvous, daemon: Daemon, token: str
) -> None:
    for method, path in (("PUT", "/global/1"), ("GET", "/global/0"), ("DELETE", "/global/1")):
        status, body = await client.ask_plainly(method, f"/{token}{path}", address(666) * 2)
        assert (status, body) in {(403, b""), (400, b"")}
    assert daemon.begun == []
    assert server.refusals() in ({"stranger": 3}, {"malformed": 3})


async def test_each_ring_has_a_token_of_its_own() -> None:
    tokens = set()
    for _ in range(10):
        server = serving()
        tokens.add(Client(server.open()).token)
        await server.stop()
    assert len(tokens) == 10
    assert min(map(len, tokens)) > 32


async def test_what_was_written_cannot_become_something_else(
    client: Client, server: Rendezvous, daemon: Daemon
) -> None:
    row, other = address(1) + address(3), address(5) + address(7)
    for _ in range(2):  # said twice, as the first answer was lost
        assert await client.ask("PUT", "/global/1", row) == (200, b"")
    assert await client.ask("PUT", "/global/1", other) == (409, b"")
    assert daemon.parcels["global"] == [address(1)[:8], b"", address(3)[:8]]
    await client.ask("DELETE", "/global/1")
    assert await client.ask("PUT", "/global/1", row) == (409, b"")
    assert server.refusals() == {"conflict": 2}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/worker_addresses/1"),
        ("PUT", "/runfunc/func"),
        ("PUT", "/rank_and_size/w1:0"),
        ("PUT", "/global/0"),
        ("PUT", "/global/rank_2"),
        ("PUT", "/global/3"),
        ("PUT", "/global/-1"),
        ("PUT", "/global/01"),
        ("PUT", "/local_w1/0"),
        ("PUT", "/local_w2/1"),
        ("PUT", "/cross_1/0"),
        ("GET", "/global_process_set_hash_xyz/0"),
        ("DELETE", "/global/9"),
        ("DELETE", "/global/1"),
    ],
)
async def test_keys_that_this_member_does_not_use_are_refused(
    client: Client, server: Rendezvous, method: str, path: str
) -> None:
    assert await client.ask(method, path) == (403, b"")
    assert server.refusals() == {"unknown": 1}


@pytest.mark.parametrize("row", [b"", b"odd"])
async def test_what_are_no_addresses_of_all_others_is_refused(client: Client, server: Rendezvous, row: bytes) -> None:
    assert await client.ask("PUT", "/global/1", row) == (400, b"")
    assert server.refusals() == {"malformed": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /t/global/1 HTTP/1.1\r\n\r\n",
        b"GET /global/1 HTTP/1.1\r\n\r\n",
        b"GET /a/b/c/d HTTP/1.1\r\n\r\n",
        b"GET /t/global/1 HTTP/2\r\n\r\n",
        b"PUT /t/global/1 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /t/global/1 HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
async def test_what_is_not_horovods_http_is_refused(client: Client, server: Rendezvous, raw: bytes) -> None:
    assert (await client.say(raw))[0] == 400
    assert server.refusals() == {"malformed": 1}


async def test_refusals_are_told_by_a_function_that_outlives_the_server() -> None:
    told: list[str] = []
    server = serving(on_refused=told.append)
    client = Client(server.open())
    await client.ask("PUT", "/runfunc/func")
    await client.say(b"POST /t/global/1 HTTP/1.1\r\n\r\n")
    await server.stop()
    assert told == ["unknown", "malformed"]


async def test_what_is_too_large_is_refused(client: Client, server: Rendezvous) -> None:
    assert (await client.say(b"PUT /t/global/1 HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"))[0] == 413
    assert (await client.say(b"GET /" + b"x" * 9000))[0] == 413
    assert server.refusals() == {"oversized": 2}


async def test_half_a_request_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.05)
    server = serving()
    client = Client(server.open())
    assert await client.say(b"GET /global/1") == (408, b"")
    assert server.refusals() == {"slow": 1}
    await server.stop()


async def test_a_request_may_come_in_pieces(client: Client, daemon: Daemon) -> None:
    reader, writer = await client.connect()
    head = f"PUT /{client.token}/global/rank_1 HT".encode()
    for piece in (head, b"TP/1.1\r\nContent-Length: 5\r\n\r\nab", b"cde"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)  # so that the pieces travel apart
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    assert await client.ask("GET", "/global/rank_1") == (200, b"abcde")
    assert daemon.begun == ["global"]


async def test_strangers_that_hold_connections_make_room_for_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 2)
    server = serving()
    client = Client(server.open())
    held = [await client.connect() for _ in range(2)]
    assert await client.ask("GET", "/rank_and_size/w2:0") == (200, b"1,3,0,1,0,1")
    assert server.refusals() == {"full": 1}
    assert await held[0][0].read() == b"", "the oldest went"
    for _, writer in held:
        writer.close()
    await server.stop()


async def test_too_many_connections_of_the_trainer_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 2)
    server = serving()
    client = Client(server.open())
    await client.ask("PUT", "/global/rank_1", b"host")
    asking = [asyncio.create_task(client.ask("GET", "/global/2")) for _ in range(2)]
    await until(lambda: server.awaited == {2})
    with pytest.raises((ConnectionResetError, AssertionError)):
        await client.ask("GET", "/rank_and_size/w2:0")
    assert server.refusals() == {"full": 1}
    server.deliver("global", {2: b"x"})
    await asyncio.gather(*asking)
    await server.stop()


# ------------------------------------------------------------------------------------------------------ the board


@pytest.mark.parametrize("worker", ["a/b", "", "a b", "a#"])
def test_names_that_do_not_fit_a_url_are_a_mistake(worker: str) -> None:
    with pytest.raises(ConfigError, match="id"):
        RendezvousBoard(worker, 0, 1)


def test_meshes_have_a_bound() -> None:
    board = RendezvousBoard("w1", 0, 2)
    for number in range(SCOPES):
        board.put(f"global_process_set_hash_{number:x}", "0", b"x")
    with pytest.raises(RequestRefused) as caught:
        board.put("global", "0", b"x")
    assert caught.value.refusal is Refusal.FULL


def test_one_value_has_a_bound() -> None:
    board = RendezvousBoard("w1", 0, 2)
    with pytest.raises(RequestRefused) as caught:
        board.put("global", "0", bytes(board.max_value + 1))
    assert caught.value.refusal is Refusal.OVERSIZED


def test_an_incomplete_request_is_no_request() -> None:
    raw = b"PUT /token:0/global/1 HTTP/1.1\r\ncontent-length:  5\r\n\r\nabcde"
    assert all(parse(bytearray(raw[:end]), 100) is None for end in range(len(raw)))
    request = parse(bytearray(raw), 100)
    assert request == ("PUT", "token:0", "global", "1", b"abcde")


# ---------------------------------------------------------------------------------------------------- the addresses


@pytest.mark.parametrize("size", [2, 3, 7])
def test_each_gets_from_each_what_that_one_has_for_it(size: int) -> None:
    """`extractAddress` of gloo/rendezvous/context.cc looks at the place of its rank, among as many as there are."""
    for sender in range(size):
        row = b"".join(address(1000 * sender + rank) for rank in range(size) if rank != sender)
        parcels = split(row, sender, size)
        for rank in (rank for rank in range(size) if rank != sender):
            seen = laid_out(parcels[rank], sender, rank, size)
            place = rank - 1 if rank > sender else rank
            assert len(seen) == len(row)
            assert seen[place * WIDTH : (place + 1) * WIDTH] == address(1000 * sender + rank)


def test_what_does_not_look_like_an_address_travels_as_it_is() -> None:
    numbered = address(1)[:-8] + bytes(8)
    sixth = struct.pack("=HH", socket.AF_INET6, 80) + b"0123" + b"a" * 16 + b"9999"
    for odd in (numbered, b"x" * 136, b"y" * 64, b"z" * 8, b"v" * 28):
        assert laid_out(split(odd, 0, 2)[1], 0, 1, 2) == odd
    assert laid_out(split(sixth + bytes(100) + b"\xff" * 8, 0, 2)[1], 0, 1, 2) == sixth + bytes(100) + b"\xff" * 8
