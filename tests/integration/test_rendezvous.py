"""Real Horovod rings of 2, 3 and 2 that find each other through our rendezvous, in processes that live on."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pace import patient
from warm_python import WarmPython

from edl.collectives.rendezvous import HOROVODS_PORT
from edl.protocol.assignment import Place
from tests.model.address_meeting import Gathering

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("horovod", "torch")), reason="needs Horovod and PyTorch"
    ),
]

MEMBER = """
import json, os, sys, time
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
    name = "total in ring " + os.environ["RING"]
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
    async def start(cls, name: str, command: Sequence[str]) -> Member:
        horovod = {**FLAT, "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "lo", "HOSTNAME": name}
        settings = {**horovod, "CYCLE_TIME": "1", "ELASTIC": "1", "GLOO_TIMEOUT_SECONDS": "5"}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **{f"HOROVOD_{key}": value for key, value in settings.items()}},
        )
        return cls(name, process)

    def enter(self, place: Place) -> None:
        order = {
            "HOROVOD_RANK": str(place.rank),
            "HOROVOD_SIZE": str(place.size),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.rendezvous,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": HOROVODS_PORT,
            "RING": str(place.generation),
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
async def members(warm: WarmPython, tmp_path: Path) -> AsyncIterator[list[Member]]:
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    command = warm.command(script, "torch")
    members = [await Member.start(f"host.example-job-w{number}", command) for number in range(3)]
    assert [(await member.told())["size"] for member in members] == [1, 1, 1]
    yield members
    for member in members:
        await member.end()


@asynccontextmanager
async def gathering_of(names: Sequence[str], generation: int = 1) -> AsyncIterator[tuple[Gathering, list[Place]]]:
    gathering = Gathering(names, generation)
    try:
        yield gathering, await gathering.open()
    finally:
        await gathering.stop()


async def form(ring: Sequence[Member], generation: int = 1) -> list[dict[str, Any]]:
    async with gathering_of([member.name for member in ring], generation) as (gathering, places):
        for place, member in zip(places, ring, strict=True):
            member.enter(place)
        told = [await member.told() for member in ring]
        assert gathering.refusals.snapshot() == {}
        return told


async def test_living_processes_change_rings_and_reduce_right(
    members: list[Member], record_property: Callable[[str, object], None]
) -> None:
    first, second, third = members
    for number, ring in enumerate(([first, second], [first, second, third], [third, first]), 1):
        told = await form(ring, number)
        assert [one["rank"] for one in told] == list(range(len(ring)))
        assert {one["size"] for one in told} == {len(ring)}
        assert {one["total"] for one in told} == {sum(range(1, len(ring) + 1))}
        record_property(f"leave and enter a ring of {len(ring)} (s)", max(map(_pause, told)))


async def test_a_process_that_is_not_a_member_does_not_take_itself_for_one(members: list[Member]) -> None:
    await form(members[:2])  # only a second init() asks for its rank
    async with gathering_of(["another-member"]) as (_, places):
        members[0].enter(places[0])
        assert "failed" in await members[0].told()


async def test_a_process_without_the_token_learns_nothing(members: list[Member]) -> None:
    async with gathering_of([member.name for member in members[:2]]) as (gathering, places):
        members[0].enter(msgspec.structs.replace(places[0], rendezvous=f"{places[0].rendezvous[:-1]}!"))
        assert "failed" in await members[0].told()
        assert set(gathering.refusals.snapshot()) == {"rendezvous_stranger"}


async def test_when_their_daemons_give_up_those_who_wait_for_a_member_are_freed(members: list[Member]) -> None:
    async with gathering_of([member.name for member in members]) as (gathering, places):
        for place, member in zip(places[:2], members[:2], strict=True):
            member.enter(place)
        # Not while they wait for one another: one that has the other's address, and is left by it, waits five
        # time-outs of gloo for its connection. (In a job, `edl.collectives.horovod_engine` cuts that short.)
        while gathering.awaited[:2] != [{2}, {2}]:  # noqa: ASYNC110 - it has no event for what only tests ask
            await asyncio.sleep(0)
    stopped = time.monotonic()
    assert all(["failed" in await member.told() for member in members[:2]])
    assert time.monotonic() - stopped < patient(5)


def _pause(told: dict[str, Any]) -> float:
    return float(told["leave_s"] + told["enter_s"])
