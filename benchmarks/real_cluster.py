"""A cluster of this machine as a benchmark holds it: started, given real jobs, looked at, ended.

Owns: the commands that a user would type, and reading what jobs have left. Does not own: any verdict.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from edl.cluster.queue.queue_entries import JobEntry
from edl.core.audit.sample_account import account
from edl.errors import EdlError
from edl.launch.job_processes import marked
from edl.scheduler.cluster_client import ClusterStatus, opened
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.worker_folders import mark_of
from edl.trainer.data.audit_files import read

Answer = TypeVar("Answer")
ROOT = Path(__file__).parents[1]
WORKER = ROOT / "benchmarks" / "cluster_worker.py"
EDL = [sys.executable, "-c", "import sys; from horovod_edl import main; sys.exit(main())"]
SAMPLES = {"digits": 1797, "sonnets": 925}
BATCH = {"digits": 32, "sonnets": 16}  # of one worker
LOOK_S = 0.5
SESSION_S = 5.0
ASK_S = 60.0  # for a coordinator that is being killed to answer


class Line(NamedTuple):
    """One job, and when it comes."""

    name: str
    after_s: float
    model: str
    np: int
    least: int
    most: int
    epochs: int
    step_s: float
    priority: int = 0

    def steps(self, workers: int) -> int:
        """Of an epoch with so many."""
        return -(-SAMPLES[self.model] // (BATCH[self.model] * workers))


class RealCluster:
    """Of one EDL_HOME."""

    def __init__(self, folder: Path, audits: Path | None = None) -> None:
        """`audits`: where the jobs' are, if not in that folder."""
        self.folder, self.places = folder, ClusterHome(folder)
        self._audits = audits or folder / "audits"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        self._loop = asyncio.new_event_loop()  # one for all that is asked: a connection belongs to its loop
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.environ = {**kept, "EDL_HOME": str(folder), "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}

    def edl(self, *words: str, **environ: str) -> str:
        """Raises SystemExit."""
        command = {**self.environ, **environ}
        done = subprocess.run([*EDL, *words], env=command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"edl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def submit(self, line: Line) -> None:
        sizes = ("-np", str(line.np), "--min-np", str(line.least), "--max-np", str(line.most))
        flags = ("--name", line.name, "--priority", str(line.priority), *sizes)
        words = (line.model, "--epochs", line.epochs, "--batch", BATCH[line.model], "--step-time", line.step_s)
        self.edl("submit", *flags, sys.executable, str(WORKER), *map(str, words), EDL_AUDIT=str(self.audit(line.name)))

    def audit(self, name: str) -> Path:
        return self._audits / name

    def exactly_once(self, line: Line) -> bool:
        """All samples of all epochs."""
        found = account(read(self.audit(line.name)))
        whole = [(epoch.total, epoch.trained) == (SAMPLES[line.model],) * 2 for epoch in found.epochs]
        return found.clean and whole == [True] * line.epochs

    def ask(self, what: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def jobs(self, patience_s: float = ASK_S) -> dict[str, JobEntry]:
        """Raises EdlError once the queue has not answered for so long."""
        return {job.name: job for job in _patiently(lambda: self.ask(_jobs(self.places)), patience_s)}

    def status(self) -> ClusterStatus:
        return _patiently(lambda: self.ask(_status(self.places)), ASK_S)

    def processes(self) -> list[int]:
        """Of all workers that ever were started here."""
        folders = (self.places.folder / "nodes").glob("*/workers/*")
        return [pid for folder in folders for pid in marked(mark_of(folder))]

    def steps(self, name: str) -> list[tuple[float, int, int]]:
        """Time, step and size, of all lives, in the order in which they were printed."""
        found = []
        for path in self.places.job_logs(name).glob("*.log*"):
            for text in path.read_text(errors="replace").splitlines():
                words = text.split()
                if len(words) == 4 and words[0] == "@":
                    found.append((float(words[1]), int(words[2]), int(words[3])))
        return sorted(found)

    def accounts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.edl("cluster", "accounts", "--json"))["jobs"]
        return found


def _patiently(ask: Callable[[], Answer], patience_s: float) -> Answer:
    until = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except EdlError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_S)


async def _jobs(places: ClusterHome) -> list[JobEntry]:
    async with opened(places) as client:
        return await client.queue.jobs()


async def _status(places: ClusterHome) -> ClusterStatus:
    async with opened(places) as client:
        return await client.status()
