"""What tests/soaks/hostile.py sends, and how it is told whether that was refused.

Each kind makes one input from a seeded source of randomness, sends it to one port, and judges what came back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import grpc
import grpc.aio
import msgspec

from edl.protocol import leader_messages as say
from edl.protocol.job_policy import Batching, BatchRule, JobPolicy
from edl.protocol.record import Identity
from edl.transport.call_errors import Refused
from edl.transport.seal import MAX_BYTES, VERSION, Request
from edl.transport.service import Speaker
from tests.soaks import hostile_wire as wire

LEADER, DAEMON, RENDEZVOUS, COORDINATOR = "leader", "daemon", "rendezvous", "coordinator"
RPC = (LEADER, DAEMON)
ANSWER_S = 30.0
CHANNELS = 4  # for each address
CAPTURED = 50  # a recorded message is played so often before another is recorded
DEEP = 100_000


class Target(NamedTuple):
    """One port of the job."""

    role: str
    host: str
    port: int

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


class Verdict(NamedTuple):
    """What became of one input."""

    how: str
    accepted: bool = False


class Attacker:
    """What a stranger holds: connections, another secret, and what was recorded of an honest client's messages."""

    def __init__(
        self, secret: bytes, job: str, term: int, workers: Sequence[Identity], source: Random, trap: Path
    ) -> None:
        """`trap`: code that leaves a mark beside itself when it is run."""
        self.source = source
        self.trap = trap
        trap.write_text(f"import pathlib\npathlib.Path({str(self.mark)!r}).touch()\nPolicy = object\n")
        self.term = term
        self.workers = workers
        self._secret, self._other_secret, self._job = secret, source.randbytes(32), job
        self._speakers: dict[tuple[Target, bytes, str], Speaker] = {}
        self.answered_s: list[float] = []  # how long honest calls took, those that were recorded
        self.sent_elsewhere = 0  # to daemons that do not lead
        self._recorded: dict[tuple[Target, type], tuple[bytes, int]] = {}
        self._channels: dict[Target, list[grpc.aio.Channel]] = {}

    @property
    def mark(self) -> Path:
        """There once the trap was run."""
        return self.trap.with_suffix(".sprung")

    async def call(self, target: Target, message: bytes, method: str = wire.METHOD, **options: object) -> bytes:
        """As gRPC's own client does it. Raises AioRpcError."""
        if target not in self._channels:
            unbounded = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            name = f"{target.host}:{target.port}"
            self._channels[target] = [grpc.aio.insecure_channel(name, options=unbounded) for _ in range(CHANNELS)]
        channel = self.source.choice(self._channels[target])
        answer: bytes = await channel.unary_unary(method)(message, timeout=ANSWER_S, **options)
        return answer

    def honest(self, target: Target) -> Speaker:
        return self._speaker(target, self._secret, self._job)

    def of_another_job(self, target: Target) -> Speaker:
        return self._speaker(target, self._secret, self._job + "-2")

    def with_another_secret(self, target: Target) -> Speaker:
        return self._speaker(target, self._other_secret, self._job)

    def _speaker(self, target: Target, secret: bytes, job: str) -> Speaker:
        if (target, secret, job) not in self._speakers:
            self._speakers[target, secret, job] = Speaker(secret, job, "client", f"{target.host}:{target.port}")
        return self._speakers[target, secret, job]

    async def recorded(self, target: Target, said: say.Request) -> bytes:
        """A message that an honest client or daemon has sent there; a leader has taken it."""
        message, left = self._recorded.get((target, type(said)), (b"", 0))
        if not left:
            message, left = self.honest(target).seal(said, self.term), CAPTURED
            began = time.monotonic()
            answer = await self.call(target, message)
            if target.role == LEADER:
                self.honest(target).open(answer, message, say.Reply)
                self.answered_s.append(time.monotonic() - began)
            else:
                self.sent_elsewhere += 1
        self._recorded[target, type(said)] = message, left - 1
        return message

    async def close(self) -> None:
        for channels in self._channels.values():
            await asyncio.gather(*(channel.close() for channel in channels))


async def called(attacker: Attacker, target: Target, message: bytes, **options: object) -> Verdict:
    """What an unauthenticated call comes to: any answer at all would be one too many."""
    try:
        await attacker.call(target, message, **options)  # type: ignore[arg-type]
    except grpc.aio.AioRpcError as error:
        return Verdict(f"gRPC {error.code().name}")
    return Verdict("answered", accepted=True)


async def told(attacker: Attacker, target: Target, message: bytes, speaker: Speaker) -> Verdict:
    """What a call comes to that is well sealed and should not be taken all the same."""
    try:
        answer = await attacker.call(target, message)
    except grpc.aio.AioRpcError as error:
        return Verdict(f"gRPC {error.code().name}")
    try:
        speaker.open(answer, message, say.Reply)
    except Refused as refusal:
        return Verdict(f"sealed refusal: {refusal.reason.value}")
    return Verdict("taken", accepted=True)


def seen(target: Target, heard: wire.Heard) -> Verdict:
    """What raw bytes come to."""
    if target.role == RENDEZVOUS and heard.received:
        head, _, body = heard.received.partition(b"\r\n\r\n")
        refused = not head.startswith(b"HTTP/1.1 200") or body.startswith(b"-1,")
        return Verdict(f"HTTP {head[9:12].decode()}" + (": no member" if body.startswith(b"-1,") else ""), not refused)
    if target.role in RPC:
        kinds = {kind for kind, payload in wire.frames(heard.received) if kind != wire.DATA or payload}
        if wire.DATA in kinds:
            return Verdict("answered", accepted=True)
        for kind, how in ((wire.HEADERS, "gRPC error"), (wire.RST_STREAM, "stream reset")):
            if kind in kinds:
                return Verdict(how)
    return Verdict("connection closed" if heard.closed else "no answer until we hung up")


# --------------------------------------------------------------------------------------------------------- raw bytes


async def garbage(attacker: Attacker, target: Target) -> Verdict:
    return seen(
        target, await wire.exchange(target.address, attacker.source.randbytes(attacker.source.randint(1, 4096)))
    )


async def preface_and_garbage(attacker: Attacker, target: Target) -> Verdict:
    noise = attacker.source.randbytes(attacker.source.randint(1, 4096))
    return seen(target, await wire.exchange(target.address, wire.PREFACE + noise))


async def random_frames(attacker: Attacker, target: Target) -> Verdict:
    source, sent = attacker.source, [wire.opening()]
    for _ in range(source.randint(1, 8)):
        payload = source.randbytes(source.randint(0, 512))
        sent.append(wire.frame(source.randrange(12), source.randrange(256), source.randrange(2**32), payload))
    return seen(target, await wire.exchange(target.address, b"".join(sent), patience_s=0.1))


async def half_open(attacker: Attacker, target: Target) -> Verdict:
    begun = b"GET /global/0 HT" if target.role == RENDEZVOUS else wire.PREFACE
    part = begun[: attacker.source.randrange(len(begun))]
    return seen(target, await wire.exchange(target.address, part, patience_s=12.0))


async def slow(attacker: Attacker, target: Target) -> Verdict:
    said = wire.opening() + attacker.source.randbytes(8)
    parts = [said[at : at + 4] for at in range(0, len(said), 4)]
    return seen(target, await wire.exchange(target.address, *parts, pause_s=0.1))


async def calls_without_message(attacker: Attacker, target: Target) -> Verdict:
    streams = range(1, 2 * attacker.source.randint(1, 32), 2)
    heads = b"".join(wire.call_head(stream) for stream in streams)
    ends = (
        b"",
        b"".join(wire.frame(wire.RST_STREAM, 0, stream, bytes(4)) for stream in streams),
        b"".join(wire.frame(wire.DATA, wire.END_STREAM, stream) for stream in streams),
    )
    heard = await wire.exchange(target.address, wire.opening() + heads + attacker.source.choice(ends), patience_s=0.1)
    return seen(target, heard)


async def declared_length(attacker: Attacker, target: Target) -> Verdict:
    length = attacker.source.randint(MAX_BYTES + 4097, 2**32 - 1)
    body = b"\x00" + length.to_bytes(4, "big") + attacker.source.randbytes(attacker.source.randint(0, 512))
    said = wire.opening() + wire.call_head(1) + wire.frame(wire.DATA, 0, 1, body)
    return seen(target, await wire.exchange(target.address, said))


async def strange_requests(attacker: Attacker, target: Target) -> Verdict:
    source = attacker.source
    method = source.choice(("GET", "PUT", "DELETE", "POST", "OPTIONS", source.randbytes(3).hex()))
    scope = source.choice(("global", "local_stranger", "cross_1", "..", "global_process_set_hash_zz", "rank_and_size"))
    key = source.choice(("17", "-1", "rank_9", "999999", "../secret", "0x0", "%00", "stranger:0"))
    length = source.choice(("0", "-1", "1e9", "4294967296", str(MAX_BYTES), "5, 5"))
    said = f"{method} /{scope}/{key} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode()
    return seen(target, await wire.exchange(target.address, said, patience_s=2.0))


async def valid_keys(attacker: Attacker, target: Target) -> Verdict:
    """What a member says, without its token or with a guess."""
    source, value = attacker.source, attacker.source.randbytes(272)
    token = source.choice(("", "/guess", "/guess:0", f"/{source.randbytes(24).hex()}:0"))
    path = f"{token}/global/{source.choice(('rank_', ''))}{source.randint(0, 2)}"
    said = f"{source.choice(('GET', 'PUT', 'DELETE'))} {path} HTTP/1.1\r\nContent-Length: {len(value)}\r\n\r\n"
    return seen(target, await wire.exchange(target.address, said.encode() + value, patience_s=2.0))


async def long_heads(attacker: Attacker, target: Target) -> Verdict:
    said = b"GET /global/17 HTTP/1.1\r\nX: " + b"a" * attacker.source.randint(8192, 65536)
    return seen(target, await wire.exchange(target.address, said, patience_s=2.0))


# ---------------------------------------------------------------------------------------------------------- messages


def real(attacker: Attacker, target: Target) -> bytes:
    """A message that was never sent, and would be taken."""
    wish = say.AskScale(attacker.source.randint(1, 9), "stranger")
    return attacker.honest(target).seal(wish, attacker.term)


async def cut_off(attacker: Attacker, target: Target) -> Verdict:
    message = real(attacker, target)
    return await called(attacker, target, message[: attacker.source.randrange(len(message))])


async def bits_flipped(attacker: Attacker, target: Target) -> Verdict:
    message = bytearray(real(attacker, target))
    for bit in attacker.source.sample(range(8 * len(message)), attacker.source.randint(1, 4)):
        message[bit // 8] ^= 1 << bit % 8
    return await called(attacker, target, bytes(message))


async def unsealed(attacker: Attacker, target: Target) -> Verdict:
    """Messages that would hurt a receiver that parsed them first."""
    source = attacker.source
    bomb = source.choice(
        (
            b"\x91" * source.randint(1, DEEP),  # arrays within arrays
            b"\xdd\xff\xff\xff\xff",  # an array of so many items
            b"\xc6\xff\xff\xff\xff",  # so many bytes
            b"\x81\xa1a" * source.randint(1, DEEP),
            msgspec.msgpack.encode(Request("s", 1, "1", "w", b"", 2**63, b"")),
        )
    )
    head = source.choice((b"", *(bytes([VERSION]) + seal for seal in (source.randbytes(32), bytes(32)))))
    return await called(attacker, target, head + bomb)


async def another_secret(attacker: Attacker, target: Target) -> Verdict:
    speaker = attacker.with_another_secret(target)
    return await called(attacker, target, speaker.seal(say.AskStop("stranger"), attacker.term))


async def another_job(attacker: Attacker, target: Target) -> Verdict:
    speaker = attacker.of_another_job(target)
    return await told(attacker, target, speaker.seal(say.AskStop("stranger"), attacker.term), speaker)


async def another_term(attacker: Attacker, target: Target) -> Verdict:
    term = attacker.source.choice((0, attacker.term - 1, attacker.term + 1, attacker.source.randrange(9, 2**31)))
    said = attacker.source.choice((say.Await(0, 0, 0.0), say.AskStop("stranger"), say.AskScale(1, "stranger")))
    return await told(attacker, target, attacker.honest(target).seal(said, term), attacker.honest(target))


async def to_another(attacker: Attacker, target: Target) -> Verdict:
    """What was said to another daemon, or to an earlier run of a job of this name and secret."""
    elsewhere = Target(target.role, target.host, attacker.source.choice((target.port - 1, target.port + 1)))
    message = attacker.honest(elsewhere).seal(say.AskStop("stranger"), attacker.term)
    return await told(attacker, target, message, attacker.honest(target))


async def replayed(attacker: Attacker, target: Target) -> Verdict:
    message = await attacker.recorded(target, say.AskStatus())
    return await told(attacker, target, message, attacker.honest(target))


async def replayed_registration(attacker: Attacker, target: Target) -> Verdict:
    register = say.Register(attacker.source.choice(attacker.workers), 9, 1, 0)
    message = await attacker.recorded(target, register)
    return await told(attacker, target, message, attacker.honest(target))


async def names_code(attacker: Attacker, target: Target) -> Verdict:
    """An attacker with the keys presents a worker whose policy is code: on any disk, installed, or no code at all."""
    source, trap = attacker.source, attacker.trap
    policy = source.choice(
        (
            f"policy={trap}:Policy",
            f"policy={trap.stem}",
            "policy=os:system",
            f"policy=sha256:{source.randbytes(31).hex()}",
            f"policy=sha256:{source.randbytes(32).hex()}\n",
            f"policy=sha256:{source.randbytes(32).hex()},cooldown=__import__('{trap.stem}')",
            f"efficiency=0.1,policy={trap}:Policy",
            f"function={trap}:Policy",
            f"utility={trap},stride={10**30}",
        )
    )
    table = ((source.choice((0, -1, 10**12)), 1),)
    hostile = source.choice(
        (
            JobPolicy(autoscale=policy),
            JobPolicy(stragglers=str(trap)),
            JobPolicy(every=source.choice((0, -1, 2**62))),
            JobPolicy(batching=Batching(BatchRule.TABLE, table=table)),
            JobPolicy(utility="x" * 100_001),
        )
    )
    worker = Identity(f"stranger-{source.randbytes(4).hex()}", "h", target.host, 1, 1)
    register = say.Register(worker, 9, 1, 0, job_policy=hostile)
    message = attacker.honest(target).seal(register, attacker.term)
    return await told(attacker, target, message, attacker.honest(target))


async def too_large(attacker: Attacker, target: Target) -> Verdict:
    return await called(attacker, target, bytes(MAX_BYTES + attacker.source.choice((1, 1000, 5000, 1_000_000))))


async def compressed(attacker: Attacker, target: Target) -> Verdict:
    """A few kB that are many MB to a receiver that unpacks them."""
    bomb = bytes(attacker.source.choice((MAX_BYTES - 1, 64 * 1024 * 1024)))
    return await called(attacker, target, bomb, compression=grpc.Compression.Gzip)


async def unknown_method(attacker: Attacker, target: Target) -> Verdict:
    name = attacker.source.choice(("/edl.Job/Stop", "/edl.Job/call", "/grpc.health.v1.Health/Check", "/x/y"))
    return await called(attacker, target, real(attacker, target), method=name)


class Kind(NamedTuple):
    """One sort of input."""

    name: str
    roles: tuple[str, ...]
    share: float  # of all inputs
    send: Callable[[Attacker, Target], Awaitable[Verdict]]


KINDS = (
    Kind("random bytes", RPC, 0.11, garbage),
    Kind("HTTP/2 preface, then random bytes", RPC, 0.06, preface_and_garbage),
    Kind("HTTP/2 frames of random kinds", RPC, 0.05, random_frames),
    Kind("half-open connections", RPC, 0.001, half_open),
    Kind("slow connections", RPC, 0.002, slow),
    Kind("calls that bring no message", RPC, 0.02, calls_without_message),
    Kind("calls that declare up to 4 GiB", RPC, 0.02, declared_length),
    Kind("unknown methods", RPC, 0.04, unknown_method),
    Kind("sealed messages, cut off", RPC, 0.12, cut_off),
    Kind("sealed messages, bits flipped", RPC, 0.12, bits_flipped),
    Kind("unsealed msgpack bombs", RPC, 0.06, unsealed),
    Kind("sealed with another secret", RPC, 0.10, another_secret),
    Kind("sealed, of another job", RPC, 0.05, another_job),
    Kind("sealed, of another term", RPC, 0.05, another_term),
    Kind("sealed, to another daemon", RPC, 0.03, to_another),
    Kind("sealed, replayed", RPC, 0.05, replayed),
    Kind("sealed, a registration replayed", RPC, 0.03, replayed_registration),
    Kind("with valid keys, naming code to run", RPC, 0.02, names_code),
    Kind("larger than a message may be", RPC, 0.0003, too_large),
    Kind("compressed bombs", RPC, 0.0003, compressed),
    Kind("random bytes", (RENDEZVOUS,), 0.02, garbage),
    Kind("requests that no member sends", (RENDEZVOUS,), 0.03, strange_requests),
    Kind("what members say, without the token", (RENDEZVOUS,), 0.03, valid_keys),
    Kind("heads without end", (RENDEZVOUS,), 0.004, long_heads),
    Kind("half-open connections", (RENDEZVOUS,), 0.0003, half_open),
    Kind("random bytes", (COORDINATOR,), 0.01, garbage),
)
