"""The worlds in which the store's contract is checked: the twin in memory, and real servers behind cuttable wires."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from edl.coordination import zookeeper
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.embedded import embedded_store
from edl.coordination.embedded.embedded_server import LocalEmbedded
from edl.coordination.etcd import etcd_store as etcd
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store
from edl.coordination.zookeeper_server import LocalServer
from tests.soaks.coordinator_faults import expire

SESSION_TIMEOUT_S = 4.0


class World(Protocol):
    """A store to check, and the faults of its surroundings."""

    async def connect(self) -> Any: ...
    async def suspend(self, store: Any) -> None: ...
    async def resume(self, store: Any) -> None: ...
    async def expire(self, store: Any) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self._server = MemoryServer()

    async def connect(self) -> Store:
        return self._server.connect()

    async def suspend(self, store: Store) -> None:
        self._server.suspend(store.session)

    async def resume(self, store: Store) -> None:
        self._server.resume(store.session)

    async def expire(self, store: Store) -> None:
        self._server.expire(store.session)


class Wire:
    """A TCP connection to the server that can be cut and mended."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._pump_both, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _far(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._target)

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._pairs:
            writer.transport.abort()

    async def _pump_both(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        far_reader, far = await self._far()
        self._pairs |= {near, far}
        await asyncio.gather(self._pump(near_reader, far), self._pump(far_reader, near))
        self._pairs -= {near, far}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


class SocketWire(Wire):
    """The same for a socket of this machine's, in a private folder as edl's own."""

    def __init__(self, target: str) -> None:
        super().__init__(0)
        self._socket = target
        self._folder = tempfile.TemporaryDirectory(prefix="edl-wire-")
        self.path = f"{self._folder.name}/socket"

    async def mend(self) -> None:
        self._server = await asyncio.start_unix_server(self._pump_both, self.path)

    async def cut(self) -> None:
        await super().cut()
        self._unlink()

    def _unlink(self) -> None:
        Path(self.path).unlink(missing_ok=True)

    async def _far(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._socket)

    def remove(self) -> None:
        self._folder.cleanup()


class RealWorld:
    """Each test has a root of its own on a server that all of them share, and a wire to it for each store."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._root = f"/contract/{uuid.uuid4().hex}"
        self._wires: dict[Any, Wire] = {}

    async def connect(self) -> Any:
        wire = Wire(self._port)
        await wire.mend()
        store = await self._open(f"127.0.0.1:{wire.port}{self._root}")
        self._wires[store] = wire
        return store

    async def _open(self, hosts: str) -> Any:
        raise NotImplementedError

    async def suspend(self, store: Any) -> None:
        await self._wires[store].cut()

    async def resume(self, store: Any) -> None:
        await self._wires[store].mend()

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in self._wires))
        await asyncio.gather(*(wire.cut() for wire in self._wires.values()))


class ZookeeperWorld(RealWorld):
    async def _open(self, hosts: str) -> zookeeper.ZookeeperStore:
        return await zookeeper.connect(Coordinator(hosts), SESSION_TIMEOUT_S)

    async def expire(self, store: zookeeper.ZookeeperStore) -> None:
        await expire(store, Coordinator(f"127.0.0.1:{self._port}"))


class EtcdWorld(RealWorld):
    async def _open(self, hosts: str) -> etcd.EtcdStore:
        return await etcd.connect(Coordinator(f"etcd://{hosts}"), SESSION_TIMEOUT_S)

    async def expire(self, store: etcd.EtcdStore) -> None:
        await expire(store, Coordinator(f"etcd://127.0.0.1:{self._port}"))


class EmbeddedWorld:
    """The server's whole tree is each test's, which finds it empty."""

    def __init__(self, server: LocalEmbedded) -> None:
        self._coordinator = server.coordinator
        self._wires: dict[Any, SocketWire] = {}

    async def connect(self) -> embedded_store.EmbeddedStore:
        wire = SocketWire(self._coordinator.socket)
        await wire.mend()
        store = await embedded_store.connect(Coordinator(f"embedded://{wire.path}"), SESSION_TIMEOUT_S)
        self._wires[store] = wire
        return store

    async def suspend(self, store: Any) -> None:
        await self._wires[store].cut()

    async def resume(self, store: Any) -> None:
        await self._wires[store].mend()

    async def expire(self, store: Any) -> None:
        await expire(store, self._coordinator)

    async def close(self) -> None:
        for store in self._wires:
            await expire(store, self._coordinator)  # some are cut off
            await store.close()
        await asyncio.gather(*(wire.cut() for wire in self._wires.values()))
        for wire in self._wires.values():
            wire.remove()
        broom = await embedded_store.connect(self._coordinator, SESSION_TIMEOUT_S)
        await sweep(broom, "/")
        await broom.close()


async def sweep(store: Store, path: str) -> None:
    for name in await store.children(path):
        await sweep(store, f"{path.rstrip('/')}/{name}")
    if path != "/":
        await store.delete(path)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server = runner.run(LocalServer.start(tmp_path_factory.mktemp("zookeeper")))
        yield server
        runner.run(server.stop())


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server = runner.run(LocalEtcd.start(tmp_path_factory.mktemp("etcd"), address="127.0.0.1"))
        yield server
        runner.run(server.stop())


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEmbedded]:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server = runner.run(LocalEmbedded.start(tmp_path_factory.mktemp("embedded")))
        yield server
        runner.run(server.stop())


REAL = [pytest.param(kind, marks=pytest.mark.integration) for kind in ("zookeeper", "etcd", "embedded")]


@pytest.fixture(params=["memory", *REAL])
def server(request: pytest.FixtureRequest) -> LocalServer | LocalEtcd | LocalEmbedded | None:
    return None if request.param == "memory" else request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
async def world(server: LocalServer | LocalEtcd | LocalEmbedded | None) -> AsyncIterator[World]:
    if server is None:
        yield MemoryWorld()
    elif isinstance(server, LocalEmbedded):
        embedded = EmbeddedWorld(server)
        yield embedded
        await embedded.close()
    else:
        real = (EtcdWorld if isinstance(server, LocalEtcd) else ZookeeperWorld)(server.port)
        yield real
        await real.close()


@pytest.fixture
async def store(world: World) -> Any:
    return await world.connect()


@pytest.fixture
async def other(world: World) -> Any:
    return await world.connect()


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    """Wait for a condition, which may be a coroutine function."""

    async def wait(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while True:
                holds = condition()
                if await holds if asyncio.iscoroutine(holds) else holds:
                    return
                await asyncio.sleep(0.005)

    return wait
