"""Very many jobs in a cluster's queue: submissions a second, how long a decision takes and a free device waits, memory.

    python -m benchmarks.cluster_queue --jobs 10000 --nodes 16 --devices 40

A real ZooKeeper, real schedulers as processes, the real agent of each node over a socket of its own; only workers are
simulated: each lives for a while and ends well. The scheduler that leads is killed once half of the jobs are submitted.
Verdict: every job that was submitted ran to its end, none twice, none was lost. Times are shown, and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import Submission
from edl.coordination import zookeeper
from edl.coordination.child_server import free_port
from edl.coordination.zookeeper_server import LocalServer
from edl.errors import EdlError
from edl.host.credentials import digest_of
from edl.scheduler.agent_process import AgentProcess
from edl.scheduler.cluster_client import ClusterClient
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, NodeGiven, put
from edl.scheduler.cluster_processes import KEEPER, spawn
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import QueueStore
from edl.scheduler.scheduler_loop import told_in
from edl.scheduler.worker_engine import Ended, Start

SESSION_S = 10.0
SUBMITTERS = 8
SCHEDULERS = ("scheduler-1", "scheduler-2")
END_S = 10.0
PATIENCE_S = 60.0  # without any job that ends


class Record:
    """What the simulated workers of all nodes went through."""

    def __init__(self) -> None:
        self.began: dict[str, list[str]] = {}  # workers by job
        self.ended: set[str] = set()  # jobs
        self.waits: list[tuple[float, float]] = []  # a device was given on: when, and how long it was free
        self.free: dict[tuple[str, int], float] = {}
        self.newest = time.monotonic()


class SimulatedEngine:
    """Of one node."""

    def __init__(self, node: str, record: Record, life_s: float, ended: Ended) -> None:
        self._node, self._record, self._life_s, self._ended = node, record, life_s, ended
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._jobs: dict[str, tuple[str, int]] = {}

    takes_workers = True

    async def find(self) -> list[WorkerFound]:
        return []

    async def start(self, start: Start) -> int | None:
        order, now = start.order, time.monotonic()
        if order.id in self._jobs:
            return None
        self._jobs[order.id] = order.job, order.device
        self._record.began.setdefault(order.job, []).append(order.id)
        if (free := self._record.free.pop((self._node, order.device), None)) is not None:
            self._record.waits.append((now, now - free))
        loop = asyncio.get_running_loop()
        self._timers[order.id] = loop.call_later(self._life_s, self._end, order.id, EndEvidence(code=0))
        return os.getpid()

    async def bar(self, worker: str) -> WorkerFound:
        raise RuntimeError(f"{worker}: no agent of this benchmark has another one before it")

    def end(self, worker: str, *, kill: bool) -> None:
        if (timer := self._timers.get(worker)) is not None:
            timer.cancel()
            self._end(worker, EndEvidence(code=-9 if kill else 0))

    def _end(self, worker: str, evidence: EndEvidence) -> None:
        if self._timers.pop(worker, None) is None:
            return
        job, device = self._jobs[worker]
        self._record.free[self._node, device] = self._record.newest = time.monotonic()
        self._record.ended.add(job)
        self._ended(worker, evidence)

    def forget(self, worker: str) -> None:
        self._jobs.pop(worker, None)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()


class Trial:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.jobs, self.life_s, self.policy = arguments.jobs, arguments.life, arguments.policy
        self.home = ClusterHome(folder)
        self.home.make()
        self.environs = EnvironFiles(self.home.environs)
        self.nodes = tuple(NodeGiven(f"node{n}", tuple(range(arguments.devices))) for n in range(arguments.nodes))
        self.record = Record()
        self.tasks: list[asyncio.Task[Any]] = []
        self.found: dict[str, Any] = {"jobs": self.jobs, "devices": arguments.nodes * arguments.devices}

    async def run(self) -> dict[str, Any]:
        put(self.home.secret, secrets.token_hex(32).encode())
        digest = digest_of(self.home.secret.read_bytes())
        server = await LocalServer.start(self.home.folder / "zookeeper", port=free_port(), digest=digest)
        self.config = ClusterConfig(
            self.nodes, self.policy, {}, {}, f"127.0.0.1:{server.port}", False, 2, SESSION_S, time.time()
        )
        self.home.write(self.config)
        with self.home.lived(KEEPER):  # so that no scheduler starts one
            try:
                await self._play()
            finally:
                put(self.home.ending, b"")
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)
                await self._end_schedulers()
                await server.stop()
        self.found["decisions"] = [told._asdict() for name in SCHEDULERS for told in told_in(self._log(name))]
        return self.found

    async def _end_schedulers(self) -> None:
        """The one that leads says at its end how long its decisions took."""
        until = time.monotonic() + END_S
        for number in (signal.SIGTERM, signal.SIGKILL):
            for name in SCHEDULERS:
                if pid := self.home.pid(name):
                    os.kill(pid, number)
            while any(map(self.home.pid, SCHEDULERS)) and time.monotonic() < until:  # noqa: ASYNC110 - others' doing
                await asyncio.sleep(0.05)

    def _log(self, name: str) -> str:
        return (self.home.logs / f"{name}.log").read_text(errors="replace")

    async def _play(self) -> None:
        for name in SCHEDULERS:
            spawn(self.home, name)
        self.client = ClusterClient(self.home, self.config, await self._queue())
        await self.client.queue.prepare()
        for node in self.nodes:
            self.tasks.append(asyncio.create_task(self._agent(node)))
        began = time.monotonic()
        await self._until_led("")
        half = asyncio.create_task(self._submit(range(self.jobs // 2)))
        await half
        first_s = time.monotonic() - began
        await self._kill_leader()
        rest = time.monotonic()
        await self._submit(range(self.jobs // 2, self.jobs))
        self.found["submissions_s"] = round(self.jobs / (first_s + time.monotonic() - rest), 1)
        names = set(await self.client.queue.names())
        self.found["waiting_once_all_are_submitted"] = len(names - self.record.ended)
        self.found["lost_once_all_are_submitted"] = self.jobs - len(names | self.record.ended)
        await self._watch_end()

    async def _queue(self) -> QueueStore:
        store = await zookeeper.connect(self.home.coordinator(), SESSION_S)
        return QueueStore(store, self.environs)

    async def _agent(self, node: NodeGiven) -> None:
        store = await zookeeper.connect(self.home.coordinator(), SESSION_S)

        def make(ended: Ended) -> SimulatedEngine:
            return SimulatedEngine(node.name, self.record, self.life_s, ended)

        await AgentProcess(self.home, node, store, make).run()

    async def _until_led(self, before: str) -> str:
        while True:
            with contextlib.suppress(EdlError):
                leader, _ = await self.client.leader()
                if leader and leader != before:
                    return leader
            await asyncio.sleep(0.05)

    async def _submit(self, numbers: range) -> None:
        """By several sessions side by side, as by several people."""
        todo = iter(numbers)

        async def some() -> None:
            client = ClusterClient(self.home, self.config, await self._queue())
            for number in todo:
                asked = Submission(f"job-{number}", ("train",), "/", "ann", time.time())
                await client.submit(asked, {"PATH": "/bin"})
                if number % 500 == 0:
                    print(f"  {number} submitted, {len(self.record.ended)} ended", flush=True)
            await client.queue.store.close()

        await asyncio.gather(*(some() for _ in range(SUBMITTERS)))

    async def _kill_leader(self) -> None:
        leader, _ = await self.client.leader()
        name, pid = leader.split()
        self.found["leader_kB_when_killed"] = memory(int(pid))
        os.kill(int(pid), signal.SIGKILL)
        killed, ended = time.monotonic(), len(self.record.ended)
        spawn(self.home, name)

        async def next_leads() -> None:
            await self._until_led(leader)
            self.found["next_leads_after_s"] = round(time.monotonic() - killed, 1)
            while len(self.record.ended) == ended or not any(at > killed + 1 for at, _ in self.record.waits[-1:]):  # noqa: ASYNC110 - others' doing
                await asyncio.sleep(0.05)
            self.found["next_job_begins_after_s"] = round(time.monotonic() - killed, 1)

        self.tasks.append(asyncio.create_task(next_leads()))

    async def _watch_end(self) -> None:
        """Until all are over, or nothing happens any more."""
        told = time.monotonic()
        most = 0
        while len(self.record.ended) < self.jobs:
            leader, _ = await self.client.leader()
            if leader:
                most = max(most, memory(int(leader.split()[1])))
            if time.monotonic() - self.record.newest > PATIENCE_S:
                break
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"  {len(self.record.ended)} ended", flush=True)
            await asyncio.sleep(0.5)
        began, waits = self.record.began, sorted(wait for _, wait in self.record.waits)
        self.found["leader_kB_at_most"] = most
        self.found["ended"] = len(self.record.ended)
        self.found["begun_twice"] = sum(len(workers) > 1 for workers in began.values())
        self.found["device_given_on_ms"] = {
            "median": round(1000 * statistics.median(waits)), "p95": round(1000 * waits[int(0.95 * len(waits))]),
        }  # fmt: skip


def memory(pid: int) -> int:
    """At most so far, in kB."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--devices", type=int, default=40, help="of each node")
    parser.add_argument("--life", type=float, default=0.5, help="seconds that a worker lives")
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--keep", help="a folder for the cluster, instead of one that is removed")
    arguments = parser.parse_args()
    logging.getLogger("edl").setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        folder = Path(arguments.keep or stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        found = asyncio.run(Trial(arguments, folder).run())
    print(json.dumps(found, indent=2))
    good = found["ended"] == found["jobs"] and not found["begun_twice"] and not found["lost_once_all_are_submitted"]
    print("passed" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
