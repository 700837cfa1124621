"""What forming a ring costs the leader: hundreds of simulated members, real daemons' code, real sockets.

    python -m benchmarks.rendezvous [--workers 64 256 1024] [--processes 4] [--session-timeout 30] [--json]

One real leader in a process of its own, which has one member's daemon in it too, a real ZooKeeper, and the daemons of
all other members, each with a gRPC server and connections of its own (`rendezvous_members.py`). Their trainers have two
meshes to build, as gloo has, with an address for each other member. First all register and form a ring. Then that ring
breaks, all say so, and form the next one, which is measured:

- *calls*, *bytes*, *CPU* of the leader's process: all calls that it answered, sealed, and those that its own member's
  daemon made, from the word that the ring broke until the next one is the present one on record.
- *of all*: CPU of all processes, that of the leader and of the members. Over the number of cores, it is the least time
  that this ring can take on this machine.
- *enter*: from telling all members that their ring broke until each has all addresses of both meshes.
- *on record*: from then on until the leader has heard that all sit.

Left out is what a trainer and its own daemon say to each other over loopback, and the connections of gloo itself.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.ledger import Child
from benchmarks.ledger_leader import SetUp
from edl.coordination.zookeeper_server import LocalServer
from edl.host.credentials import digest_of

JOB = "meeting"
PATIENCE_S = 300.0


async def tell_all(children: list[Child], command: str) -> None:
    for child in children:
        child.command(command)
    for child in children:
        await child.told(command.partition(" ")[0])


async def one(child: Child, command: str) -> dict:
    child.command(command)
    return await child.told(command.partition(" ")[0])


async def form(children: list[Child], generation: int) -> tuple[float, float]:
    """Seconds until all know all, and until the leader has the ring on record."""
    began = time.monotonic()
    await tell_all(children, f"await {generation}")
    known = time.monotonic()
    await tell_all(children, "sit")
    await one(children[0], f"complete {generation}")
    return known - began, time.monotonic() - known


async def measure(workers: int, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    secret = secrets.token_hex(32)
    server = await LocalServer.start(folder / f"zk{workers}", digest=digest_of(secret.encode()))
    children: list[Child] = []
    try:
        hosts = ",".join(f"{host}:{port}" for host, port in server.coordinator.endpoints)
        about = SetUp(hosts, JOB, secret, options.session_timeout, workers)
        cuts = [0] + [1 + (workers - 1) * i // options.processes for i in range(options.processes + 1)]
        for first, last in itertools.pairwise(cuts):
            of_them = msgspec.structs.replace(about, first=first, last=last)
            children.append(await Child.start("rendezvous_members", of_them))
        await children[0].told("reigning")
        for child in children:
            child.command("join")
        async with asyncio.timeout(PATIENCE_S):
            first_s, _ = await form(children, 1)
            await tell_all(children, "measure")
            began = time.monotonic()
            await tell_all(children, "fail")
            told_s = time.monotonic() - began
            enter_s, record_s = await form(children, 2)
            led = await one(children[0], "report")
            others = [await one(child, "report") for child in children[1:]]
        return {
            "workers": workers,
            "calls": led["calls"],
            "bytes": led["bytes"],
            "cpu_s": led["cpu_s"],
            "all_cpu_s": led["cpu_s"] + sum(other["cpu_s"] for other in others),
            "enter_s": told_s + enter_s,
            "record_s": record_s,
            "first_s": first_s,
        }
    finally:
        for child in reversed(children):
            await child.end()
        await server.stop()


def show(results: list[dict[str, float]]) -> None:
    print(f"{'workers':>7} {'calls':>7} {'a worker':>8} {'kB':>8} {'a worker':>8} {'CPU s':>7} {'ms each':>7}", end="")
    print(f" {'of all':>7}", end="")
    print(f" {'enter s':>8} {'on record s':>11} {'joined and entered s':>20}")
    for one in results:
        workers = one["workers"]
        calls, kilobytes = one["calls"], one["bytes"] / 1000
        print(f"{workers:>7} {calls:>7} {calls / workers:>8.1f} {kilobytes:>8.0f} {kilobytes / workers:>8.2f}", end="")
        print(f" {one['cpu_s']:>7.2f} {1000 * one['cpu_s'] / workers:>7.2f} {one['all_cpu_s']:>7.2f}", end="")
        print(f" {one['enter_s']:>8.2f} {one['record_s']:>11.2f} {one['first_s']:>20.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--processes", type=int, default=4, help="that the members are shared out among")
    parser.add_argument("--session-timeout", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = [asyncio.run(measure(workers, options, Path(name))) for workers in options.workers]
    if options.json:
        print(json.dumps(results))
    else:
        show(results)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
