"""What strikes a cluster of this machine in `tests/soaks/cluster_chaos.py`, and who looks on.

Owns: killing and freezing its processes, thawing them, when clocks are set and the disk is full, and looking meanwhile
at what must never be. Does not own: jobs.
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
from edl.launch.job_processes import MARK
from edl.scheduler.cluster_client import opened
from edl.scheduler.queue_store import SCHEDULER
from tests.soaks.cluster_machine import MACHINE, Clocks, Disk

PROCESSES = ("leader", "scheduler", "agent", "keeper", "server", "trainer", "daemon", "warden", "worker")
CLOCK, DISK = "clock", "disk"
AHEAD_S = (-3600.0, -60.0, 0.0, 60.0, 3600.0)  # of a clock that is set
FULL_S = (1.0, 2 * SESSION_S)
FREEZES = 0.4  # share of strikes that freeze
FROZEN_S = (0.5, 3 * SESSION_S)
LOOK_S = 0.25
PREFIX = f"{MARK}=".encode()


class Striker:
    """Acts on processes of this one cluster, and on the machine below it."""

    def __init__(self, cluster: RealCluster, onlooker: Onlooker, seed: int, clocks: Clocks, disk: Disk | None) -> None:
        self._cluster, self._onlooker, self._chance = cluster, onlooker, random.Random(seed)
        self._clocks, self._disk = clocks, disk
        self._targets = (*PROCESSES, CLOCK, *([] if disk is None else [DISK]))
        self._frozen: list[tuple[float, int]] = []
        self._full_until = 0.0
        self.struck: Counter[str] = Counter()
        self.leader_at: list[float] = []  # when a scheduler that led was struck down

    def strike(self) -> str:
        """A target that is drawn; what was done in words."""
        chance = self._chance
        target = chance.choice(self._targets)
        if target == CLOCK:
            return self._set_clock()
        if target == DISK:
            return self._fill_disk()
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

    def _set_clock(self) -> str:
        """The machine's, or that of one process of the cluster, as if it were on a machine of its own."""
        chance = self._chance
        living = [name for name, pid in self._cluster.places.living().items() if pid]
        name, ahead_s = chance.choice([MACHINE, *living]), chance.choice(AHEAD_S)
        self._clocks.set(name, ahead_s)
        self.struck["clock set"] += 1
        return f"clock of {name} set to {ahead_s:+g} s"

    def _fill_disk(self) -> str:
        assert self._disk is not None
        seconds = self._chance.uniform(*FULL_S)
        self._disk.fill()
        self._full_until = time.monotonic() + seconds
        self.struck["disk filled"] += 1
        return f"disk full for {seconds:.1f} s"

    def thaw(self, *, all_: bool = False) -> None:
        """End what has lasted long enough: what is frozen goes on, and a full disk has room again."""
        now = time.monotonic()
        if self._disk is not None and (all_ or self._full_until <= now):
            self._disk.free()
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
        return "warden" if b"worker_wrapper.py" in line else "daemon" if b"edl.daemon" in line else "trainer"
    return "gone"


def _life_of(trainers: list[int]) -> str:
    """Of its job; empty where they have just ended."""
    for pid in trainers:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return next((word.decode() for word in words if word.startswith(b"EDL_LIFE=")), "")
    return ""


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
    """Sees what must never be: two workers on one device, a worker or a job that runs twice. Notes who leads."""

    def __init__(self, cluster: RealCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._over = threading.Event()
        self.wrong: set[str] = set()
        self.looks = 0
        self._wardens: dict[str, set[int]] = {}  # at the last look, by folder of a worker
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
        seen = parts_of(self._cluster.places.folder)
        self._see_begun_twice(seen)
        devices: dict[str, str] = {}
        lives: dict[str, tuple[str, str]] = {}
        for folder, parts in seen.items():
            trainers = [pid for pid, kind in parts.items() if kind == "trainer"]
            if not trainers:
                continue
            worker = Path(folder).name
            device = (Path(folder) / "device").read_text()
            other = devices.setdefault(f"{Path(folder).parents[1].name}/{device}", worker)
            if other != worker:
                self.wrong.add(f"{other} and {worker} on device {device}")
            job, life = worker.rpartition("-")[0], _life_of(trainers)
            before, whose = lives.setdefault(job, (life, worker)) if life else ("", "")
            if before != life:
                self.wrong.add(f"{whose} and {worker} of two lives of {job}")

    def _see_begun_twice(self, seen: dict[str, dict[int, str]]) -> None:
        """A warden's child looks like a second one for a moment, until it is another program."""
        now = {folder: {pid for pid, kind in parts.items() if kind == "warden"} for folder, parts in seen.items()}
        twice = [folder for folder, pids in now.items() if len(pids & self._wardens.get(folder, set())) > 1]
        self.wrong |= {f"{Path(folder).name} was begun twice" for folder in twice}
        self._wardens = now

    def waits(self, struck: list[float]) -> list[float]:
        """Seconds from each end of a leader to the next one's term, unless another was struck before."""
        found = []
        for at, then in zip(struck, [*struck[1:], float("inf")], strict=True):
            after = [seen for seen, _ in self.reigns if seen > at]
            if after and after[0] < then:
                found.append(after[0] - at)
        return found
