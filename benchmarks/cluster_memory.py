"""Memory of a cluster's coordinator while very many jobs wait, each with an environment of its own.

    python -m benchmarks.cluster_memory --jobs 10000 --environ-bytes 25000
    python -m benchmarks.cluster_memory --fill --command-bytes 60000

Jobs are submitted as `edl submit` does, by several sessions, to the coordinator that a cluster would start, with no
scheduler beside it: nothing becomes of them. `--fill` goes on until the queue refuses two users' next jobs. Then the
coordinator is killed, and started again with all of them in it.
Verdict: the coordinator never ended by itself, came up again with every job, and took no more memory than its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import secrets
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster_queue import memory
from edl.cluster.queue.queue_entries import Submission
from edl.cluster.queue.submission import QueueFull
from edl.coordination.child_server import ChildServer
from edl.coordination.local_coordinator import start_local
from edl.coordination.store import connect
from edl.coordination.zookeeper_server import HEAP_MIB
from edl.host.credentials import digest_of
from edl.scheduler.cluster_client import ClusterClient
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import QueueStore

SUBMITTERS = 8
USERS = ("ann", "bob")
BESIDE_MIB = 160  # Java's own, beside its heap


class Trial:
    """One coordinator, and the jobs that wait in it."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.wanted, self.home = arguments, ClusterHome(folder)
        self.home.make()
        self.environs = EnvironFiles(self.home.environs)
        self.config = ClusterConfig((), "fifo", {}, {}, "h:1", True, 1, 10.0, time.time())
        self.full: dict[str, str] = {}
        self.submitted = self.ends = 0

    async def run(self) -> dict[str, Any]:
        digest = digest_of(secrets.token_hex(32).encode())
        server = await start_local(self.wanted.coordinator, self.home.folder, port=None, digest=digest)
        watching = asyncio.create_task(self._watch(server))
        try:
            began = time.monotonic()
            await asyncio.gather(*(self._submit(server, number) for number in range(SUBMITTERS)))
            took = time.monotonic() - began
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            found = {
                "jobs": self.submitted,
                "submissions_s": round(self.submitted / took, 1),
                "environ_MB": round(sum(one.stat().st_size for one in self.home.environs.iterdir()) / 1e6),
                "coordinator_MiB": memory(server.pid) >> 10,
                "coordinator_ended": self.ends,
                "refused": self.full,
            }
            return found | await self._again(server)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await server.stop()

    async def _watch(self, server: ChildServer) -> None:
        while True:
            await server.wait_exit()
            self.ends += 1
            await server.restart()

    async def _client(self, server: ChildServer) -> ClusterClient:
        queue = QueueStore(await connect(server.coordinator, 10.0), self.environs)
        await queue.prepare()
        return ClusterClient(self.home, self.config, queue)

    async def _submit(self, server: ChildServer, session: int) -> None:
        client = await self._client(server)
        for number in itertools.count() if self.wanted.fill else range(session, self.wanted.jobs, SUBMITTERS):
            users = [user for user in USERS if user not in self.full]
            if not users:
                break
            user = users[number % len(users)] if self.wanted.fill else users[0]
            command = ("train", secrets.token_hex(self.wanted.command_bytes // 2))
            environ = {"X": secrets.token_hex(self.wanted.environ_bytes // 2)}
            asked = Submission(f"job-{session}-{number}", command, "/", user, time.time())
            try:
                await client.submit(asked, environ)
            except QueueFull as error:
                self.full[user] = str(error)
            else:
                self.submitted += 1
        await client.queue.store.close()

    async def _again(self, server: ChildServer) -> dict[str, Any]:
        """With all of them in it."""
        os.kill(server.pid, signal.SIGKILL)
        await server.wait_exit()
        began = time.monotonic()
        await server.restart()
        client = await self._client(server)
        up_s, jobs = time.monotonic() - began, await client.queue.jobs()
        read_s = time.monotonic() - began - up_s
        whole = len(jobs) == self.submitted and bool(client.queue.environ(jobs[-1]))
        await client.queue.store.close()
        again = {
            "up_again_s": round(up_s, 1),
            "all_read_s": round(read_s, 1),
            "coordinator_MiB": memory(server.pid) >> 10,
        }
        return {"again": again, "whole": whole}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--environ-bytes", type=int, default=25_000)
    parser.add_argument("--command-bytes", type=int, default=100)
    parser.add_argument("--fill", action="store_true", help="until the queue is full")
    parser.add_argument("--coordinator", choices=("zookeeper", "etcd"), default="zookeeper")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        found = asyncio.run(Trial(arguments, folder).run())
    print(json.dumps(found, indent=2))
    most = max(found["coordinator_MiB"], found["again"]["coordinator_MiB"])
    fits = arguments.coordinator == "etcd" or most <= HEAP_MIB + BESIDE_MIB
    good = found["whole"] and not found["coordinator_ended"] and fits and len(found["refused"]) == 2 * arguments.fill
    print("passed" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
