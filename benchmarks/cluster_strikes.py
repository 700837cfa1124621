"""What strikes a cluster of this machine in `benchmarks/cluster_chaos.py`, and who looks on.

Owns: killing and freezing its processes, thawing them, and looking meanwhile at what must never be. Does not own: jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.real_cluster import SESSION_S, RealCluster
from edl.coordination.election import read_leader
from edl.coordination.store import Store
from edl.errors import EdlError
from edl.launch.processes import MARK
from edl.scheduler.client import opened
from edl.scheduler.queue_store import SCHEDULER

TARGETS = ("leader", "scheduler", "agent", "keeper", "server", "trainer", "daemon", "warden", "worker")
FREEZES = 0.4  # share of strikes that freeze
FROZEN_S = (0.5, 3 * SESSION_S)
LOOK_S = 0.25
PREFIX = f"{MARK}=".encode()


class Striker:
    """Acts on processes of this one cluster."""

    def __init__(self, cluster: RealCluster, onlooker: Onlooker, seed: int) -> None:
        self._cluster, self._onlooker, self._chance = cluster, onlooker, random.Random(seed)
        self._frozen: list[tuple[float, int]] = []
        self.struck: Counter[str] = Counter()
        self.leader_at: list[float] = []  # when a scheduler that led was struck down

    def strike(self) -> str:
        """A target that is drawn; what was done in words."""
        chance = self._chance
        target = chance.choice(TARGETS)
        pids = list(self._pids(target))
        if not pids:
            return ""
        freeze = chance.random() < FREEZES
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if freeze else signal.SIGKILL)
        seconds = chance.uniform(*FROZEN_S)
        if target == "leader" and (not freeze or seconds > SESSION_S):  # else it may well lead on
            self.leader_at.append(time.monotonic())
        self.struck[f"{target} {'frozen' if freeze else 'killed'}"] += 1
        if not freeze:
            return f"{target} killed"
        self._frozen += [(time.monotonic() + seconds, pid) for pid in pids]
        return f"{target} frozen for {seconds:.1f} s"

    def thaw(self, *, all_: bool = False) -> None:
        now = time.monotonic()
        due = [one for one in self._frozen if all_ or one[0] <= now]
        self._frozen = [one for one in self._frozen if one not in due]
        for _, pid in due:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _pids(self, target: str) -> Iterator[int]:
        """One of the kind, or all processes of one worker."""
        living = {name: pid for name, pid in self._cluster.places.living().items() if pid}
        match target:
            case "leader":
                yield from [pid for name, pid in living.items() if name == self._onlooker.leader]
            case "scheduler" | "agent" | "keeper":
                found = [pid for name, pid in sorted(living.items()) if name.partition("-")[0] == target]
                yield from self._chance.sample(found, min(1, len(found)))
            case "server":
                yield from servers(self._cluster.places.folder)
            case _:
                workers = parts_of(self._cluster.places.folder)
                if workers:
                    parts = workers[self._chance.choice(sorted(workers))]
                    yield from [pid for pid, kind in parts.items() if target in {"worker", kind}]


def parts_of(folder: Path) -> dict[str, dict[int, str]]:
    """By the folder of each worker that lives: its processes, and what each is."""
    found: dict[str, dict[int, str]] = {}
    for pid, environ in _of_proc("environ"):
        marks = [word[len(PREFIX) :].decode() for word in environ if word.startswith(PREFIX)]
        if marks and marks[0].startswith(f"{folder}/nodes/"):
            found.setdefault(marks[0], {})[pid] = _kind(pid)
    return found


def _kind(pid: int) -> str:
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return "warden" if b"warden.py" in line else "daemon" if b"edl.daemon" in line else "trainer"
    return "gone"


def servers(folder: Path) -> list[int]:
    """The coordinator's process."""
    places = (f"{folder}/zookeeper".encode(), f"{folder}/etcd".encode())
    return [
        pid for pid, line in _of_proc("cmdline") if any(word.startswith(place) for word in line for place in places)
    ]


def _of_proc(name: str) -> Iterator[tuple[int, list[bytes]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / name).read_bytes().split(b"\0")


class Onlooker(threading.Thread):
    """Sees what must never be, two workers on one device, and who leads since when."""

    def __init__(self, cluster: RealCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._over = threading.Event()
        self.wrong: set[str] = set()
        self.looks = 0
        self.leader = ""  # name of the process
        self.reigns: list[tuple[float, int]] = []  # when a term was seen first

    def run(self) -> None:
        self._cluster.ask(self._look_on())

    def stop(self) -> None:
        self._over.set()
        self.join()

    async def _look_on(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(EdlError):
                async with opened(self._cluster.places) as client:
                    await self._with(client.queue.store)

    async def _with(self, store: Store) -> None:
        while not self._over.is_set():
            leader = await read_leader(store, SCHEDULER)
            self.leader = "" if leader is None else leader.ident.partition(" ")[0]
            if leader is not None and (not self.reigns or leader.term > self.reigns[-1][1]):
                self.reigns.append((time.monotonic(), leader.term))
            await asyncio.to_thread(self._see)
            await asyncio.sleep(LOOK_S)

    def _see(self) -> None:
        self.looks += 1
        folder = self._cluster.places.folder
        devices: dict[str, str] = {}
        for worker, parts in parts_of(folder).items():
            if not any(kind == "trainer" for kind in parts.values()):
                continue
            device = (Path(worker) / "device").read_text()
            other = devices.setdefault(device, worker)
            if other != worker:
                self.wrong.add(f"{Path(other).name} and {Path(worker).name} on device {device}")

    def waits(self, struck: list[float]) -> list[float]:
        """Seconds from each end of a leader to the next one's term, unless another was struck before."""
        found = []
        for at, then in zip(struck, [*struck[1:], float("inf")], strict=True):
            after = [seen for seen, _ in self.reigns if seen > at]
            if after and after[0] < then:
                found.append(after[0] - at)
        return found
