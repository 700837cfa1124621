"""Real Horovod rings of 2, 3 and 2 that find each other through our rendezvous, in processes that live on."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pace import patient

from edl.collectives.rendezvous import Rendezvous

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("horovod", "torch")), reason="needs Horovod and PyTorch"
    ),
]

MEMBER = """
import json, os, sys, time
sys.modules["tensorflow"] = None  # horovod.torch imports it when it can, and that takes seconds
import torch, horovod.torch as hvd
torch.set_num_threads(1)
hvd.init()
print(json.dumps({"size": hvd.size()}), flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    hvd.shutdown()
    left = time.perf_counter()
    os.environ.update(json.loads(line))
    try:
        hvd.init()
    except Exception as error:
        print(json.dumps({"failed": str(error), "after": time.perf_counter() - left}), flush=True)
        continue
    entered = time.perf_counter()
    name = "total in " + os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name=name)
    print(json.dumps({"rank": hvd.rank(), "size": hvd.size(), "local": hvd.local_rank(), "total": total.item(),
                      "leave_s": left - started, "enter_s": entered - left}), flush=True)
"""
FLAT = {"RANK": "0", "SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1", "CROSS_RANK": "0", "CROSS_SIZE": "1"}


class Member:
    """A process that was started in a ring of one."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, name: str) -> Member:
        horovod = {**FLAT, "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "lo", "HOSTNAME": name}
        settings = {**horovod, "CYCLE_TIME": "1", "ELASTIC": "1", "GLOO_TIMEOUT_SECONDS": "5"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MEMBER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **{f"HOROVOD_{key}": value for key, value in settings.items()}},
        )
        return cls(name, process)

    def enter(self, rank: int, size: int, port: int) -> None:
        order = {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(size),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def told(self) -> dict[str, Any]:
        """What became of the newest order. Stock Horovod ends its process when a ring does not form."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        return dict(json.loads(line)) if line else {"failed": f"exit code {await self._process.wait()}"}

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@pytest.fixture
async def members() -> AsyncIterator[list[Member]]:
    members = [await Member.start(f"host.example-job-w{number}") for number in range(3)]
    assert [(await member.told())["size"] for member in members] == [1, 1, 1]
    yield members
    for member in members:
        await member.end()


@asynccontextmanager
async def rendezvous_of(names: Sequence[str]) -> AsyncIterator[tuple[Rendezvous, int]]:
    rendezvous = Rendezvous(names, generation=1)
    port = await rendezvous.start("127.0.0.1")
    try:
        yield rendezvous, port
    finally:
        await rendezvous.stop()


async def form(ring: Sequence[Member]) -> list[dict[str, Any]]:
    async with rendezvous_of([member.name for member in ring]) as (rendezvous, port):
        for rank, member in enumerate(ring):
            member.enter(rank, len(ring), port)
        told = [await member.told() for member in ring]
        assert rendezvous.missing() == ()
        assert rendezvous.refusals() == {}
        return told


async def test_living_processes_change_rings_and_reduce_right(
    members: list[Member], record_property: Callable[[str, object], None]
) -> None:
    first, second, third = members
    for ring in ([first, second], [first, second, third], [third, first]):
        told = await form(ring)
        assert [one["rank"] for one in told] == list(range(len(ring)))
        assert {one["size"] for one in told} == {len(ring)}
        assert {one["total"] for one in told} == {sum(range(1, len(ring) + 1))}
        record_property(f"leave and enter a ring of {len(ring)} (s)", max(map(_pause, told)))


async def test_a_process_that_is_not_a_member_does_not_take_itself_for_one(members: list[Member]) -> None:
    await form(members[:2])  # only a second init() asks for its rank
    async with rendezvous_of(["somebody-else"]) as (rendezvous, port):
        members[0].enter(0, 1, port)
        assert "failed" in await members[0].told()
        assert rendezvous.missing() == ("somebody-else",)


async def test_when_the_leader_goes_away_those_who_wait_for_a_member_are_freed(members: list[Member]) -> None:
    async with rendezvous_of([member.name for member in members]) as (rendezvous, port):
        for rank, member in enumerate(members[:2]):
            member.enter(rank, 3, port)
        while rendezvous.missing() != (members[2].name,):  # noqa: ASYNC110 - it has no event for what only tests ask
            await asyncio.sleep(0)
    stopped = time.monotonic()
    assert all(["failed" in await member.told() for member in members[:2]])
    assert time.monotonic() - stopped < patient(5)


def _pause(told: dict[str, Any]) -> float:
    return float(told["leave_s"] + told["enter_s"])
