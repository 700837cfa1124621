"""ZooKeeper, etcd and the embedded coordinator, as `edl run` starts them: how soon each serves, and what it takes.

    python -m benchmarks.coordinators [--rounds 5] [--session-timeout 2] [--kinds zookeeper,etcd,embedded] [--json]

All in one run, in turns. Figures, each a median of the rounds:

    start      from the call until it serves, closed to others
    first      from there until a client has a session and has created a node
    idle       resident memory when it serves; `loaded`: after the writes below, the largest of them 100 kB
    write      one compare-and-set of 200 bytes, by one client; `commit`: the same with a fence and another node created
    read       of 200 bytes
    takeover   from the `kill -9` of a leader's process until another contender leads

Exit code 1 if a takeover takes longer than two session time-outs and two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from edl.coordination.coordinator_settings import EMBEDDED, ETCD, ZOOKEEPER, Coordinator, Digest
from edl.coordination.election import Candidate, read_leader
from edl.coordination.local_coordinator import start_local
from edl.coordination.store import Create, Op, Store, Write, connect
from tests.soaks.election_contender import LOG, ROOT

WRITES = 200
LARGE = b"x" * 100_000

Figures = dict[str, float]


def resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


async def measured(kind: str, session_s: float) -> Figures:
    with tempfile.TemporaryDirectory(prefix="edl-coordinators-") as folder:
        began = time.monotonic()
        server = await start_local(kind, Path(folder), port=None, digest=Digest("edl", "a" * 64))
        try:
            found = {"start_s": time.monotonic() - began}
            began = time.monotonic()
            store = await connect(server.coordinator, 10.0)
            await store.create("/first")
            found |= {"first_s": time.monotonic() - began, "idle_mib": resident_mib(server.pid)}
            found |= await _latencies(store)
            found |= {"loaded_mib": resident_mib(server.pid)}
            found |= {"takeover_s": await _takeover(store, server.coordinator, session_s)}
            await store.close()
        finally:
            await server.stop()
    return found


async def _latencies(store: Store) -> Figures:
    await store.create("/value", b"x" * 200)
    await store.create("/log")
    await store.create("/fence", ephemeral=True)
    times: dict[str, list[float]] = defaultdict(list)
    version = 0
    for number in range(WRITES):
        began = time.monotonic()
        version = await store.write("/value", b"x" * 200, version)
        times["write_ms"].append(time.monotonic() - began)
        began = time.monotonic()
        ops: list[Op] = [Write("/value", b"x" * 200, version), Create("/log/e-", b"event", sequence=True)]
        await store.commit(ops, fence="/fence")
        version += 1
        times["commit_ms"].append(time.monotonic() - began)
        began = time.monotonic()
        await store.read("/value")
        times["read_ms"].append(time.monotonic() - began)
        if number % 2:
            version = await store.write("/value", LARGE, version)
    return {name: 1000 * statistics.median(of_one) for name, of_one in times.items()}


async def _takeover(store: Store, coordinator: Coordinator, session_s: float) -> float:
    """The leader is a process of its own; who comes after it is here."""
    await store.create(LOG)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path))} | coordinator.environment()
    leader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.soaks.election_contender", "first", "--session-timeout", str(session_s),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    try:
        while (elected := await read_leader(store, ROOT)) is None or elected.ident != "first":  # noqa: ASYNC110 - it boots
            await asyncio.sleep(0.02)
        leads = asyncio.Event()
        next_one = Candidate(store, ROOT, "second", lambda reign: leads.set() if reign else None)
        next_one.stand()
        while len(await store.children(f"{ROOT}/candidates")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        leader.kill()
        began = time.monotonic()
        async with asyncio.timeout(60):
            await leads.wait()
        took = time.monotonic() - began
        await next_one.resign()
        return took
    finally:
        if leader.returncode is None:
            leader.kill()
        await leader.wait()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--session-timeout", type=float, default=2.0)
    parser.add_argument("--kinds", default=f"{ZOOKEEPER},{ETCD},{EMBEDDED}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[Figures]] = {kind: [] for kind in options.kinds.split(",")}
    for _ in range(options.rounds):
        for kind, of_kind in found.items():
            of_kind.append(await measured(kind, options.session_timeout))
    medians = {kind: {name: statistics.median(one[name] for one in of) for name in of[0]} for kind, of in found.items()}
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{'':<12}" + "".join(f"{kind:>12}" for kind in medians) + f"   medians of {options.rounds}")
        for name in next(iter(medians.values())):
            print(f"{name:<12}" + "".join(f"{of[name]:>12.3f}" for of in medians.values()))
    slow = 2 * options.session_timeout + 2
    return int(any(of["takeover_s"] > slow for of in medians.values()))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
