"""The twin of `edl.transport.rpc` without sockets: the same seals and checks, and faults on request.

Owns: delivery between servers and clients of one process. Does not own: time; deadlines are those of the running loop.
Without faults, everything happens in a fixed order, so that a simulation replays exactly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from types import UnionType
from typing import Any, TypeVar, overload

import msgspec

from edl.transport.call_errors import DeadlineExceeded, Refusals, Unreachable
from edl.transport.service import Handler, Service, Speaker, being_cancelled

R = TypeVar("R")

STOP_GRACE_S = 0.5


class Fate(Enum):
    """The delivery of a message."""

    DELIVER = auto()
    DROP = auto()  # no server receives it: the caller waits until its deadline
    HOLD = auto()  # until `MemoryNetwork.release`
    DOUBLE = auto()  # delivered twice


class Parcel(msgspec.Struct, frozen=True):
    sender: str  # of the call, in both directions
    address: str  # of the server, in both directions
    reply: bool
    wire: bytes


class MemoryNetwork:
    """`fate`, when set, is asked for every message."""

    def __init__(self) -> None:
        self.fate: Callable[[Parcel], Fate] | None = None
        self.held: deque[tuple[Parcel, asyncio.Future[None]]] = deque()
        self._holding = asyncio.Event()
        self._cut_off: set[str] = set()
        self._servers: dict[str, MemoryListener] = {}
        self._ports = count(1)

    def server(
        self,
        secret: bytes,
        job: str,
        handler: Handler,
        *,
        request_types: Any,
        refusals: Refusals,
        termless: tuple[type, ...] = (),
    ) -> MemoryListener:
        service = Service(secret, job, handler, request_types=request_types, refusals=refusals, termless=termless)
        return MemoryListener(self, service)

    def client(self, secret: bytes, job: str, sender: str, address: str) -> MemoryClient:
        return MemoryClient(self, Speaker(secret, job, sender, address), sender, address)

    def cut(self, *names: str) -> None:
        """Partition the network: nothing passes to or from these senders and addresses any more."""
        self._cut_off.update(names)

    def heal(self) -> None:
        self._cut_off.clear()

    def release(self, number: int | None = None) -> None:
        """Release the oldest held messages, all of them by default."""
        for _ in range(len(self.held) if number is None else number):
            _, gate = self.held.popleft()
            if not gate.done():
                gate.set_result(None)

    async def wait_held(self, number: int) -> None:
        while len(self.held) < number:
            self._holding.clear()
            await self._holding.wait()

    async def carry(self, sender: str, address: str, wire: bytes) -> bytes:
        """Carry a message to its server, and the answer back. Raises what the server raises, and Unreachable."""
        double = await self._pass(Parcel(sender, address, False, wire))
        server = self._servers.get(address)
        if server is None:
            raise Unreachable(f"nothing listens at {address}")
        answering = server.serve(wire)
        if double:
            server.serve(wire)
        try:
            answer = await answering
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            raise Unreachable(f"{address} went away during the call") from error
        await self._pass(Parcel(sender, address, True, answer))
        return answer

    async def _pass(self, parcel: Parcel) -> bool:
        """Return once the parcel has arrived; True if it arrives twice."""
        await asyncio.sleep(0)
        fate = self.fate(parcel) if self.fate is not None else Fate.DELIVER
        if fate is Fate.HOLD:
            gate = asyncio.get_running_loop().create_future()
            self.held.append((parcel, gate))
            self._holding.set()
            await gate
        if fate is Fate.DROP or not self._cut_off.isdisjoint((parcel.sender, parcel.address)):
            await asyncio.get_running_loop().create_future()  # never
        return fate is Fate.DOUBLE


class MemoryListener:
    """The listener of a memory network; see `edl.transport.call_errors.Listener`."""

    def __init__(self, network: MemoryNetwork, service: Service) -> None:
        self._network = network
        self._service = service
        self._address = ""
        self._answering: set[asyncio.Task[bytes]] = set()

    @property
    def term(self) -> int:
        return self._service.term

    @term.setter
    def term(self, value: int) -> None:
        self._service.term = value

    async def start(self, host: str) -> int:
        port = next(self._network._ports)
        self._address = self._service.address = f"{host}:{port}"
        self._network._servers[self._address] = self
        return port

    async def stop(self) -> None:
        self._network._servers.pop(self._address, None)
        if self._answering:
            await asyncio.wait(self._answering, timeout=STOP_GRACE_S)
        self.kill()

    def kill(self) -> None:
        """End calls in flight without an answer, as SIGKILL does."""
        self._network._servers.pop(self._address, None)
        for task in list(self._answering):
            task.cancel()

    def serve(self, wire: bytes) -> asyncio.Task[bytes]:
        task = asyncio.create_task(self._service.answer(wire))
        self._answering.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[bytes]) -> None:
        self._answering.discard(task)
        if not task.cancelled():
            task.exception()  # a doubled message has no caller to tell


class MemoryClient:
    """The caller of a memory network; see `edl.transport.call_errors.Caller`."""

    def __init__(self, network: MemoryNetwork, speaker: Speaker, sender: str, address: str) -> None:
        self._network = network
        self._speaker = speaker
        self._sender = sender
        self._address = address
        self._calling: set[asyncio.Task[bytes]] = set()
        self._closed = False

    def connect(self) -> None:
        pass

    @overload
    async def call(self, body: msgspec.Struct, reply_type: type[R], *, term: int, deadline_s: float) -> R: ...
    @overload
    async def call(self, body: msgspec.Struct, reply_type: UnionType, *, term: int, deadline_s: float) -> Any: ...
    async def call(self, body: msgspec.Struct, reply_type: Any, *, term: int, deadline_s: float) -> Any:
        if self._closed:
            raise Unreachable(f"the client of {self._address} is closed")
        request = self._speaker.seal(body, term)
        try:
            async with asyncio.timeout(deadline_s):
                reply = await self._carry(request)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self._address} did not answer in time") from error
        return self._speaker.open(reply, request, reply_type)

    async def close(self) -> None:
        self._closed = True
        for task in list(self._calling):
            task.cancel()

    async def _carry(self, request: bytes) -> bytes:
        task = asyncio.create_task(self._network.carry(self._sender, self._address, request))
        self._calling.add(task)
        try:
            return await task
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            raise Unreachable(f"the client of {self._address} is closed") from error
        finally:
            self._calling.discard(task)
