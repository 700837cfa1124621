"""One suite for both carriers: gRPC, and the twin in memory that simulations use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import msgspec
import pytest

from edl.errors import ConfigError
from edl.transport import seal
from edl.transport.call_errors import DeadlineExceeded, Reason, Refusals, Refused, Unauthentic, Unreachable
from edl.transport.memory_transport import MemoryNetwork
from edl.transport.rpc import METHOD, SERVICE, Client, Server
from edl.transport.service import Call, Speaker

SECRET = b"a secret of the job"
JOB = "job"
TERM = 7


class Add(msgspec.Struct, frozen=True, tag="add"):
    left: int
    right: int


class Greet(msgspec.Struct, frozen=True, tag="greet"):
    """May be asked without knowing the term."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Answered when the test says so."""


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    pass


class Stale(msgspec.Struct, frozen=True, tag="stale"):
    pass


class Bulk(msgspec.Struct, frozen=True, tag="bulk"):
    """Asks for, and may bring, so many bytes."""

    wanted: int
    brought: bytes = b""


class Unheard(msgspec.Struct, frozen=True, tag="unheard"):
    """No server takes it."""


class Sum(msgspec.Struct, frozen=True, tag="sum"):
    value: int


class Said(msgspec.Struct, frozen=True, tag="said"):
    sender: str
    term: int


class Bytes(msgspec.Struct, frozen=True, tag="bytes"):
    payload: bytes


Request = Add | Greet | Hold | Fail | Stale | Bulk
Reply = Sum | Said | Bytes


class Leader:
    """The handler under test."""

    def __init__(self) -> None:
        self.taken: list[Call] = []
        self.holding = 0
        self.cancelled = 0
        self.changed = asyncio.Condition()
        self.released = asyncio.Event()

    async def __call__(self, call: Call) -> msgspec.Struct:
        self.taken.append(call)
        match call.body:
            case Add(left, right):
                return Sum(left + right)
            case Greet():
                return Said(call.sender, call.term)
            case Hold():
                return await self._hold()
            case Fail():
                raise KeyError("a bug of the handler")
            case Stale():
                raise Refused(Reason.GENERATION)
            case Bulk(wanted):
                return Bytes(bytes(wanted))
        raise AssertionError(call)

    async def _hold(self) -> Sum:
        await self._note(holding=1)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            await self._note(cancelled=1)
            raise
        finally:
            self.holding -= 1
        return Sum(0)

    async def _note(self, holding: int = 0, cancelled: int = 0) -> None:
        async with self.changed:
            self.holding += holding
            self.cancelled += cancelled
            self.changed.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(condition), 10)


class GrpcCarrier:
    """The real thing."""

    server = Server
    client = Client

    @staticmethod
    async def raw(address: str, wire: bytes) -> bytes:
        """What a stranger sends who has no client of ours."""
        async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            try:
                return await channel.unary_unary(f"/{SERVICE}/{METHOD}")(wire, timeout=10)
            except grpc.aio.AioRpcError as error:
                return error.code().name.encode()


class MemoryCarrier:
    """The twin."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.server = self.network.server
        self.client = self.network.client

    async def raw(self, address: str, wire: bytes) -> bytes:
        try:
            return await self.network.carry("stranger", address, wire)
        except Unauthentic:
            return b"UNAUTHENTICATED"
        except Refused as refusal:
            return {Reason.VERSION: b"FAILED_PRECONDITION", Reason.OVERSIZED: b"OUT_OF_RANGE"}[refusal.reason]


class World:
    """A leader that listens, and those who call it."""

    def __init__(self, carrier: Any) -> None:
        self.carrier = carrier
        self.leader = Leader()
        self.refusals = Refusals()
        self.server = self.make_server(self.leader)
        self.clients: list[Any] = []
        self.address = ""

    def make_server(self, handler: Callable[[Call], Awaitable[msgspec.Struct]]) -> Any:
        return self.carrier.server(
            SECRET, JOB, handler, request_types=Request, refusals=self.refusals, termless=(Greet,)
        )

    def client(self, sender: str = "w1", *, secret: bytes = SECRET, job: str = JOB, address: str = "") -> Any:
        client = self.carrier.client(secret, job, sender, address or self.address)
        self.clients.append(client)
        return client

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1')}"
        self.server.term = TERM

    async def close(self) -> None:
        self.leader.released.set()
        for client in self.clients:
            await client.close()
        await self.server.stop()


@asynccontextmanager
async def world_of(carrier: Any) -> AsyncIterator[World]:
    world = World(carrier)
    await world.start()
    try:
        yield world
    finally:
        await world.close()


@pytest.fixture(
    params=[pytest.param(GrpcCarrier, marks=pytest.mark.integration), MemoryCarrier], ids=["grpc", "memory"]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_of(request.param()) as world:
        yield world


async def ask(client: Any, body: msgspec.Struct, *, term: int = TERM, deadline_s: float = 10) -> Any:
    return await client.call(body, Reply, term=term, deadline_s=deadline_s)


# ------------------------------------------------------------------------------------------------------ it works


async def test_a_call_is_answered(world: World) -> None:
    assert await ask(world.client(), Add(2, 3)) == Sum(5)


async def test_a_reply_of_one_type_is_returned_as_that_type(world: World) -> None:
    assert await world.client().call(Add(2, 3), Sum, term=TERM, deadline_s=10) == Sum(5)


async def test_the_handler_learns_who_says_it_and_when(world: World) -> None:
    assert await ask(world.client("w9"), Greet()) == Said("w9", TERM)


async def test_calls_held_by_the_handler_hold_up_no_other(world: World) -> None:
    clients = [world.client(f"w{number}") for number in range(40)]
    held = [asyncio.create_task(ask(client, Hold())) for client in clients for _ in range(5)]
    await world.leader.wait_until(lambda: world.leader.holding == len(held))
    assert await ask(clients[0], Add(1, 1)) == Sum(2)
    world.leader.released.set()
    assert await asyncio.gather(*held) == [Sum(0)] * len(held)


# ---------------------------------------------------------------------------------------- what is refused, counted


async def test_a_stale_or_future_term_is_refused_with_the_present_one(world: World) -> None:
    client = world.client()
    for term in (TERM - 1, TERM + 1):
        with pytest.raises(Refused) as caught:
            await ask(client, Add(1, 1), term=term)
        assert (caught.value.reason, caught.value.term) == (Reason.TERM, TERM)
    assert world.refusals.snapshot() == {"term": 2}
    assert world.leader.taken == []


async def test_without_a_term_only_some_may_be_asked(world: World) -> None:
    client = world.client()
    assert await ask(client, Greet(), term=0) == Said("w1", 0)
    with pytest.raises(Refused) as caught:
        await ask(client, Add(1, 1), term=0)
    assert (caught.value.reason, caught.value.term) == (Reason.TERM, TERM)


async def test_one_who_does_not_lead_takes_nothing_that_needs_a_leader(world: World) -> None:
    world.server.term = 0
    client = world.client()
    for term in (0, TERM):
        with pytest.raises(Refused) as caught:
            await ask(client, Add(1, 1), term=term)
        assert (caught.value.reason, caught.value.term) == (Reason.TERM, 0)


async def test_what_a_leader_says_after_its_reign_is_a_refusal(world: World) -> None:
    held = asyncio.create_task(ask(world.client(), Hold()))
    await world.leader.wait_until(lambda: world.leader.holding == 1)
    world.server.term = TERM + 1
    world.leader.released.set()
    with pytest.raises(Refused) as caught:
        await held
    assert (caught.value.reason, caught.value.term) == (Reason.TERM, TERM + 1)


async def test_the_handler_may_refuse_a_stale_generation(world: World) -> None:
    with pytest.raises(Refused) as caught:
        await ask(world.client(), Stale())
    assert caught.value.reason is Reason.GENERATION
    assert world.refusals.snapshot() == {"generation": 1}


async def test_a_message_of_another_job_is_refused(world: World) -> None:
    with pytest.raises(Refused) as caught:
        await ask(world.client(job="other"), Add(1, 1))
    assert caught.value.reason is Reason.JOB
    assert world.refusals.snapshot() == {"job": 1}


async def test_a_message_to_another_daemon_is_refused(world: World) -> None:
    """A recorded request can be played to no other daemon, nor to another run of the job, though the secret fits."""
    other = world.make_server(world.leader)
    address = f"127.0.0.1:{await other.start('127.0.0.1')}"
    other.term = TERM
    try:
        wire = Speaker(SECRET, JOB, "w1", world.address).seal(Add(1, 1), TERM)
        answer = await world.carrier.raw(address, wire)
        with pytest.raises(Refused) as caught:
            Speaker(SECRET, JOB, "w1", address).open(answer, wire, Reply)
    finally:
        await other.stop()
    assert caught.value.reason is Reason.RECIPIENT
    assert world.leader.taken == []
    assert world.refusals.snapshot() == {"recipient": 1}


async def test_an_unknown_message_is_refused(world: World) -> None:
    with pytest.raises(Refused) as caught:
        await ask(world.client(), Unheard())
    assert caught.value.reason is Reason.UNKNOWN_MESSAGE
    assert world.refusals.snapshot() == {"unknown_message": 1}


async def test_a_reply_that_the_caller_does_not_expect_is_not_taken(world: World) -> None:
    with pytest.raises(Refused) as caught:
        await world.client().call(Add(1, 1), Said, term=TERM, deadline_s=10)
    assert caught.value.reason is Reason.UNKNOWN_MESSAGE


async def test_another_secret_is_unauthentic(world: World) -> None:
    with pytest.raises(Unauthentic):
        await ask(world.client(secret=b"the secret of another"), Add(1, 1))
    assert world.refusals.snapshot() == {"unauthentic": 1}
    assert world.leader.taken == []


async def test_a_secret_too_short_to_protect_anything_is_a_mistake(world: World) -> None:
    with pytest.raises(ConfigError, match="secret"):
        world.client(secret=b"short")


async def test_a_message_taken_once_is_not_taken_again(world: World) -> None:
    wire = Speaker(SECRET, JOB, "w1", world.address).seal(Add(1, 1), TERM)
    first = await world.carrier.raw(world.address, wire)
    again = await world.carrier.raw(world.address, wire)
    speaker = Speaker(SECRET, JOB, "w1", world.address)
    assert speaker.open(first, wire, Reply) == Sum(2)
    with pytest.raises(Refused) as caught:
        speaker.open(again, wire, Reply)
    assert caught.value.reason is Reason.REPLAYED
    assert len(world.leader.taken) == 1
    assert world.refusals.snapshot() == {"replayed": 1}


@pytest.mark.parametrize("position", [1, 20, 33, -1])
async def test_a_changed_byte_is_unauthentic(world: World, position: int) -> None:
    wire = bytearray(Speaker(SECRET, JOB, "w1", world.address).seal(Add(1, 1), TERM))
    wire[position] ^= 1
    assert await world.carrier.raw(world.address, bytes(wire)) == b"UNAUTHENTICATED"
    assert world.refusals.snapshot() == {"unauthentic": 1}


async def test_another_version_of_the_envelope_is_refused(world: World) -> None:
    wire = Speaker(SECRET, JOB, "w1", world.address).seal(Add(1, 1), TERM)
    answer = await world.carrier.raw(world.address, bytes([seal.VERSION + 1]) + wire[1:])
    assert answer == b"FAILED_PRECONDITION"
    assert world.refusals.snapshot() == {"version": 1}


async def test_what_is_too_large_never_leaves(world: World) -> None:
    with pytest.raises(Refused) as caught:
        await ask(world.client(), Bulk(0, bytes(seal.MAX_BYTES)))
    assert caught.value.reason is Reason.OVERSIZED
    assert world.leader.taken == []


async def test_what_is_too_large_is_not_taken(world: World) -> None:
    assert await world.carrier.raw(world.address, bytes(seal.MAX_BYTES + 1)) == b"OUT_OF_RANGE"
    assert world.refusals.snapshot() == {"oversized": 1}


async def test_a_reply_that_is_too_large_is_a_refusal(world: World) -> None:
    client = world.client()
    assert await ask(client, Bulk(1 << 20)) == Bytes(bytes(1 << 20))
    with pytest.raises(Refused) as caught:
        await ask(client, Bulk(seal.MAX_BYTES))
    assert caught.value.reason is Reason.OVERSIZED


async def test_a_bug_of_the_handler_is_told_and_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = world.client()
    with pytest.raises(Refused) as caught:
        await ask(client, Fail())
    assert caught.value.reason is Reason.FAILED
    assert "a bug of the handler" in caplog.text
    assert await ask(client, Add(1, 1)) == Sum(2)


# ------------------------------------------------------------------------------------------- deadlines and deaths


async def test_a_handler_that_hangs_costs_its_caller_the_deadline_and_is_cancelled(world: World) -> None:
    before = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await ask(world.client(), Hold(), deadline_s=0.2)
    assert 0.15 < time.monotonic() - before < 5
    await world.leader.wait_until(lambda: world.leader.cancelled == 1)


async def test_a_server_that_stops_ends_the_calls_it_holds(world: World) -> None:
    held = asyncio.create_task(ask(world.client(), Hold()))
    await world.leader.wait_until(lambda: world.leader.holding == 1)
    await world.server.stop()
    with pytest.raises(Unreachable):
        await held


async def test_a_server_that_stops_lets_calls_end_for_a_moment(world: World) -> None:
    held = asyncio.create_task(ask(world.client(), Hold()))
    await world.leader.wait_until(lambda: world.leader.holding == 1)
    stopping = asyncio.create_task(world.server.stop())
    await asyncio.sleep(0)
    world.leader.released.set()
    assert await held == Sum(0)
    await stopping


async def test_an_address_without_a_listener_is_unreachable_at_once(world: World) -> None:
    await world.server.stop()
    before = time.monotonic()
    with pytest.raises(Unreachable):
        await ask(world.client(), Add(1, 1))
    assert time.monotonic() - before < 5


async def test_a_closed_client_makes_no_call_and_ends_those_it_made(world: World) -> None:
    client = world.client()
    held = asyncio.create_task(ask(client, Hold()))
    await world.leader.wait_until(lambda: world.leader.holding == 1)
    await client.close()
    await client.close()
    with pytest.raises(Unreachable):
        await held
    with pytest.raises(Unreachable):
        await ask(client, Add(1, 1))


async def test_a_caller_that_gives_up_is_cancelled_not_failed(world: World) -> None:
    held = asyncio.create_task(ask(world.client(), Hold()))
    await world.leader.wait_until(lambda: world.leader.holding == 1)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    await world.leader.wait_until(lambda: world.leader.cancelled == 1)


async def test_stopping_twice_and_before_the_start_is_harmless(world: World) -> None:
    await world.server.stop()
    await world.server.stop()
    await world.make_server(world.leader).stop()
