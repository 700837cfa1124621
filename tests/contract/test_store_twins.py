"""The twin in memory against the real server: the same calls, drawn at random, must have the same outcome on both."""

from __future__ import annotations

import asyncio
import random
import signal
import uuid
from typing import Any

import pytest

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.embedded.embedded_server import LocalEmbedded
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import ANY, Check, Create, Delete, Link, Store, StoreRefused, Write, connect
from edl.errors import EdlError

PATHS = ("/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f")


def draw_op(rng: random.Random):
    path, version = rng.choice(PATHS), rng.choice((ANY, ANY, 0, 1))
    kind: Any = rng.choice((Create, Create, Create, Write, Delete, Check))
    if kind is Create:
        return Create(path, rng.randbytes(2), ephemeral=rng.random() < 0.2, sequence=rng.random() < 0.2)
    if kind is Write:
        return Write(path, rng.randbytes(2), version)
    return kind(path, version)


async def outcome(store: Store, rng: random.Random):
    """What one drawn call did, in words that can be compared."""
    ops = [draw_op(rng) for _ in range(rng.randint(1, 4))]
    fence, parents = rng.choice((None, None, *PATHS)), rng.random() < 0.7
    try:
        if len(ops) > 1:
            return await store.commit(ops, fence=fence)
        return await call(store, ops[0], parents=parents)
    except StoreRefused as error:
        return (type(error).__name__, error.path, error.op if len(ops) > 1 else None)
    except EdlError as error:
        return type(error).__name__


async def call(store: Store, op, *, parents: bool):
    match op:
        case Create():
            return await store.create(op.path, op.value, ephemeral=op.ephemeral, sequence=op.sequence, parents=parents)
        case Write():
            return await store.write(op.path, op.value, op.version)
        case Delete():
            return await store.delete(op.path, op.version)
        case Check():
            return await store.children(op.path)


async def tree(store: Store, path: str = "/"):
    node = await store.read(path)
    below = [await tree(store, f"{path.rstrip('/')}/{name}") for name in await store.children(path)]
    return (path, node.value, node.version, node.owner == store.session, below)


@pytest.mark.integration
@pytest.mark.parametrize("server", ["zookeeper", "etcd"], indirect=True)
@pytest.mark.parametrize("seed", range(12))
async def test_same_calls_same_outcome(server, seed):
    settings = Coordinator(f"{server.coordinator.hosts}/twins/{uuid.uuid4().hex}")
    real, twin = await connect(settings, 10.0), MemoryServer().connect()
    try:
        for step in range(60):
            expected = await outcome(real, random.Random(f"{seed} {step}"))
            got = await outcome(twin, random.Random(f"{seed} {step}"))
            assert got == expected, f"seed {seed}, step {step}"
        assert await tree(twin) == await tree(real)
    finally:
        await real.close()


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(4))
async def test_same_calls_same_outcome_embedded_and_after_a_kill(tmp_path, seed):
    """With a server of its own, whose whole tree it is; what its journal brings back is the same again."""
    server = await LocalEmbedded.start(tmp_path / "embedded")
    real, twin = await connect(server.coordinator, 10.0), MemoryServer().connect()
    try:
        for step in range(60):
            expected = await outcome(twin, random.Random(f"{seed} {step}"))
            got = await outcome(real, random.Random(f"{seed} {step}"))
            assert got == expected, f"seed {seed}, step {step}"
        server.signal(signal.SIGKILL)
        await server.wait_exit()
        await server.restart()
        connected = asyncio.Event()
        real.watch_link(lambda link: connected.set() if link is Link.CONNECTED else None)
        if real.link is not Link.CONNECTED:
            await connected.wait()
        assert await tree(twin) == await tree(real)
    finally:
        await real.close()
        await server.stop()
