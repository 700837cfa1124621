"""What benchmarks have in common: a job in a folder of its own, what its workers noted, its events, kept figures.

Owns: the command of a peer; a job that learns digits; medians and ratios; and `keep`, which puts figures into
data/results for `benchmarks/report.py`. Does not own: what is measured, nor what `edl prove` needs as well: starting a
job, waiting for it, its end, and its workers' notes (`edl.proof`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from edl.config import Given, Settings
from edl.errors import EdlError
from edl.events import Event, Kind
from edl.launch.locate_job import Whereabouts, locate
from edl.proof.measured_job import END_S, NotComeTrue, audited, edl_run, program, wait_true
from edl.proof.measured_job import MeasuredJob as Job
from edl.proof.step_figures import Note, compared, set_file
from edl.proof.step_figures import NotedSteps as Notes

__all__ = [
    "END_S",
    "Job",
    "NotComeTrue",
    "Note",
    "Notes",
    "audited",
    "compared",
    "edl_run",
    "program",
    "set_file",
    "wait_true",
]

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 120.0


# ------------------------------------------------------------------------------------------------------------- a job


def horovodrun(folder: Path, hosts: str, workers: int, most: int, *flags: str) -> list[str]:
    """Elastic, with a discovery script that prints `hosts`: lines of NAME:SLOTS, or what `set_hosts` sets later."""
    set_hosts(folder, hosts)
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
    script.chmod(0o755)
    limits = ["-np", str(workers), "--min-np", "1", "--max-np", str(most), "--network-interface", "lo"]
    return [program("horovodrun"), *limits, *flags, "--host-discovery-script", str(script)]


def set_hosts(folder: Path, hosts: str) -> None:
    set_file(folder / "hosts", f"{hosts}\n")


def worker(folder: Path, *arguments: object) -> list[str]:
    """The command of a worker of `benchmarks/worker.py`."""
    return [sys.executable, "-m", "benchmarks.worker", str(folder), *map(str, arguments)]


# ------------------------------------------------------------------------------------------- a job that learns digits

DIGITS = 1797  # samples
LEEWAY = 0.25  # of the losses of jobs of fixed size
EPOCH_S = 5.0  # however busy the machine is
STOP_STEPS = 200  # all workers read of the end before it comes


class DigitsJob(Job):
    """It learns the UCI digits until it is told to end, with an audit of all samples."""

    def __init__(
        self, framework: str, folder: Path, workers: int, step_s: float, *more: str, flags: Sequence[str] = ()
    ) -> None:
        """`more`: arguments of the worker; `flags`: more of `edl run`."""
        command = worker(folder, "--model", "digits", "--framework", framework, "--step-ms", 1000 * step_s, *more)
        audit = str(folder / "audit")
        super().__init__(folder, [*edl_run(workers, "digits", *flags), *command], name="digits", EDL_AUDIT=audit)

    def wait_training(self) -> None:
        def begun() -> bool:
            return any('"committed"' in path.read_text() for path in self.folder.glob("audit/*.jsonl"))

        self.wait(begun, "the job trains", PATIENCE_S)

    def finish(self, epochs: int | None = None) -> int:
        """After so many epochs, or the next few; returns how many there were."""
        if epochs is None:
            begun = [note["samples"] // DIGITS for note in self.notes.all() if note["kind"] == "epoch"]
            epochs = max(begun, default=0) + 3  # not by the status, which may be old: perhaps no worker leads
        set_file(self.folder / "epochs", str(epochs))
        if self.launcher.wait(PATIENCE_S * 5 + EPOCH_S * epochs):
            raise SystemExit(f"the job failed:\n{self.log()}")
        return epochs

    def break_off(self) -> None:
        """Have all workers end after the same step, a moment from now."""
        self.set("stop", self.newest_step() + STOP_STEPS)
        try:
            code = self.launcher.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"the job does not end: {self.edl('status', self.name)}\n{self.log()}") from None
        if code:
            raise SystemExit(f"the job failed:\n{self.log()}")

    def ends_of_steps(self) -> dict[int, list[float]]:
        return {pid: [note["at"] for note in steps] for pid, steps in self.notes.steps().items()}

    def newest_step(self) -> int:
        """That any worker has committed, by the audit: no leader need answer."""
        steps = [0]
        for path in self.folder.glob("audit/*.jsonl"):
            for line in reversed(_tail(path).splitlines()[-5:]):
                if line.startswith(b'["committed"') and line.endswith(b"]"):
                    steps.append(int(json.loads(line)[2]))
                    break
        return max(steps)


def _tail(path: Path) -> bytes:
    """Its last lines, the first of them perhaps cut off."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        return file.read()


def fixed_loss(framework: str, workers: int, epochs: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        job = DigitsJob(framework, Path(name), workers, 0.0)
        try:
            job.finish(epochs)
        finally:
            job.launcher.terminate()  # harmless once it has ended
            job.launcher.wait()
        return statistics.mean(note["loss"] for note in job.notes.all() if note["kind"] == "end")


def near(loss: float, fixed: Sequence[float]) -> bool:
    """Whether a loss lies within those of jobs of fixed size, and somewhat beyond."""
    return min(fixed) * (1 - LEEWAY) <= loss <= max(fixed) * (1 + LEEWAY)


# ---------------------------------------------------------------------------------------------------------- its events


class EventWatch:
    """Follows the events of a job as the coordinator has them, in a thread of its own; `heard` only grows.

    `edl.client.Job.follow` may be a second later, as it reads what the launcher has kept.
    """

    AGAIN_S = 0.1

    def __init__(self, job: str, home: str) -> None:
        self._where = locate(Settings.from_given({"job": Given(job, "job")}, {"EDL_HOME": home}))
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)
        self.heard: list[Event] = []
        self.heard_at: list[float] = []  # seconds since 1970

    def __enter__(self) -> EventWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError):  # the job is over, and the loop closed
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10.0)

    def wait(self, true: Callable[[Event], bool], after: int, patience_s: float) -> Event | None:
        """The first such event beyond the first `after` ones; None if there is none in time."""

        def found() -> Event | None:
            return next((event for event in self.heard[after:] if true(event)), None)

        with self._news:
            return self._news.wait_for(found, patience_s)

    def wait_kind(self, kind: Kind, after: int, patience_s: float) -> Event | None:
        return self.wait(lambda event: event.kind is kind, after, patience_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._follow(self._where))
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    async def _follow(self, where: Whereabouts) -> None:
        while True:
            try:
                async with where.client() as client:
                    async for event in client.follow(len(self.heard)):
                        with self._news:
                            self.heard.append(event)
                            self.heard_at.append(time.time())
                            self._news.notify_all()
                return  # the job is over
            except EdlError:  # the coordinator is away
                await asyncio.sleep(self.AGAIN_S)


# ----------------------------------------------------------------------------------------------------------- processes


def command_line(pid: int) -> list[bytes]:
    """Its words; none once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def daemon_of(trainer: int) -> int:
    """Edl's daemon, by its command line: it names its trainer."""
    for entry in Path("/proc").glob("[0-9]*"):
        words = command_line(int(entry.name))
        if b"edl.daemon.daemon" in words and str(trainer).encode() in words:
            return int(entry.name)
    raise LookupError(f"no daemon of process {trainer}")


def cpu_seconds(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tell(what: str, **more: object) -> None:
    """To the parent, as a line of JSON; `at` is on a clock that all processes of the machine share."""
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


async def lines(stream: IO[str]) -> AsyncIterator[str]:
    """Of the parent."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    while line := await reader.readline():
        yield line.decode().strip()


# ------------------------------------------------------------------------------------------------------------- figures


def mean_ratio(ratios: np.ndarray) -> tuple[float, float]:
    """The mean of some ratios, and its standard error (not a number of a single one)."""
    error = float(np.std(ratios, ddof=1) / len(ratios) ** 0.5) if len(ratios) > 1 else float("nan")
    return float(np.mean(ratios)), error


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """With the options that each benchmark has."""
    return add_common(argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter))


def add_common(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of words")
    parser.add_argument("--keep", metavar="NAME", help="put the figures in the place of those in data/results")
    return parser


def keep(name: str | None, figures: Sequence[Mapping[str, object]], folder: Path = ROOT / "data" / "results") -> None:
    """Put newer figures in the place of a kept result's, with the command, the day and the machine.

    What the figures say is to be mended by hand, and the page made again: `python -m benchmarks.report`.
    """
    if name is None:
        return
    path = folder / f"{name}.json"
    if not path.exists():
        raise SystemExit(f"--keep {name}: {path} is not there; begin it with a title and a reading")
    old = json.loads(path.read_text())
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program_name = f"python -m {module.name}" if module else f"python {Path(sys.argv[0]).name}"
    given = [word for at, word in enumerate(sys.argv[1:], 1) if word != "--keep" and sys.argv[at - 1] != "--keep"]
    load = os.getloadavg()[0]
    result = {
        "title": old["title"],
        "command": " ".join([program_name, *given]),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, load {load:.0f} at the end",
        "reading": old["reading"],
        **({"columns": old["columns"]} if "columns" in old else {}),
        "figures": list(figures),
    }
    set_file(path, written(result))
    print(
        f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}: is its reading still true?", file=sys.stderr
    )


def written(result: Mapping[str, Any]) -> str:
    """A result as its file has it: a row of figures is a line."""
    head = json.dumps(
        {name: value for name, value in result.items() if name != "figures"}, indent=1, ensure_ascii=False
    )
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in result["figures"])
    return f'{head[:-2]},\n "figures": [\n{rows}\n ]\n}}\n'
