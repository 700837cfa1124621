"""The demonstration: a real training that grows, loses a worker to kill -9 and shrinks while it trains.

Two workers train a digits classifier under `edl run`. A third process joins like any newcomer, by the job's name alone.
Then one worker is killed, and one is told to leave by SIGTERM. All the while the job's own status and events are shown;
at the end, what each change cost the survivors. Exit code 0 if and only if the job finished.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from edl.coordination.settings import Coordinator
from edl.errors import EdlError
from edl.events import Event, Kind
from edl.protocol.job import JobState, Status, WorkerStatus
from edl.runtime.client import JobClient

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 180.0
LOOK_S = 0.2
SHOWN = {kind for kind in Kind if kind is not Kind.EPOCH_ENDED}


class Demo:
    """The story, and what is seen of it."""

    def __init__(self, home: Path, epochs: int, console: Console) -> None:
        self.job = f"demo-{secrets.token_hex(2)}"
        self._home = home
        self._epochs = epochs
        self._console = console
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = (home / "output.log").open("wb")
        self._status: Status | None = None
        self._events: list[Event] = []
        self._rate = (0.0, 0, 0.0)  # at, step, steps a second
        self._live: Live | None = None

    async def run(self) -> bool:
        """Play it. True if the job finished."""
        launcher = self._start([_program("edl"), "run", "-np", "2", "--job", self.job])
        watching: asyncio.Task[None] | None = None
        try:
            async with JobClient(await self._coordinator(launcher), self.job, self._secret()) as client:
                watching = asyncio.create_task(self._watch(client))
                await self._play()
                await self._until(lambda: launcher.poll() is not None, "the job's end")
                with contextlib.suppress(EdlError):  # its coordinator may be gone already
                    await self._look(client)
        finally:
            if watching is not None:
                watching.cancel()
            self._clean_up()
        return launcher.returncode == 0

    async def _play(self) -> None:
        await self._until(lambda: self._step() > 50, "the first steps")
        self._say("a third worker joins: the others train on while it boots and rehearses")
        self._start([], {"EDL_JOB": self.job})
        await self._until(lambda: self._size() == 3, "three workers")
        await self._more_steps(50)
        victim = self._worker(lambda worker: worker.rank == 1)
        self._say(f"kill -9 {victim.pid}: worker {victim.id} of rank 1 is gone without a word")
        os.kill(victim.pid, signal.SIGKILL)
        await self._until(lambda: self._size() == 2, "the survivors to go on")
        await self._more_steps(50)
        leaver = self._worker(lambda worker: worker.rank == 1)
        self._say(f"kill -TERM {leaver.pid}: worker {leaver.id} is asked to leave")
        os.kill(leaver.pid, signal.SIGTERM)
        await self._until(lambda: self._size() == 1, "the last one to go on")
        self._say("one worker is left, and trains the rest of the epochs: no sample is lost or repeated")

    # ------------------------------------------------------------------------------------------------- processes

    def _start(self, launcher: list[str], more: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        training = [sys.executable, str(ROOT / "examples" / "torch_digits.py")]
        options = ["--epochs", str(self._epochs), "--step-time", "0.02"]
        environ = {
            **os.environ,
            "EDL_HOME": str(self._home),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "EDL_MAX_RESTARTS": "0",
            **(more or {}),
        }
        process = subprocess.Popen(
            [*launcher, *training, *options],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    async def _coordinator(self, launcher: subprocess.Popen[bytes]) -> Coordinator:
        record = self._home / "jobs" / self.job / "record.json"

        def found() -> str:
            if launcher.poll() is not None:
                raise SystemExit(f"demo: edl run ended at once:\n{(self._home / 'output.log').read_text()}")
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(json.loads(record.read_bytes())["coordinator"])
            return ""

        await self._until(lambda: bool(found()), "the coordinator")
        return Coordinator(found())

    def _secret(self) -> bytes:
        return (self._home / "jobs" / self.job / "secret").read_bytes().strip()

    def _clean_up(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(15)
                process.kill()
        self._log.close()

    # ------------------------------------------------------------------------------------------------ what is seen

    async def _watch(self, client: JobClient) -> None:
        with (
            Live(console=self._console, auto_refresh=False)
            if self._console.is_terminal
            else contextlib.nullcontext() as live
        ):
            self._live = live
            while True:
                with contextlib.suppress(EdlError):
                    await self._look(client)
                await asyncio.sleep(LOOK_S)

    async def _look(self, client: JobClient) -> None:
        self._status = await client.status()
        _, new = await client.events(len(self._events))
        self._events += new
        for event in new:
            if event.kind in SHOWN:
                self._say(f"  {event.kind.value} {_details(event)}")
        at, step, _ = self._rate
        now = time.monotonic()
        if now - at >= 1.0:
            self._rate = (now, self._status.step, (self._status.step - step) / (now - at) if at else 0.0)
        if self._live is not None:
            self._live.update(self._picture(self._status), refresh=True)

    def _picture(self, status: Status) -> Table:
        table = Table(title=f"job {status.job}: {status.state.value}, {self._rate[2]:.0f} steps/s", min_width=70)
        for column in ("rank", "worker", "state", "step", "pid", ""):
            table.add_column(column)
        for worker in status.workers:
            crown = "leader" if worker.id == status.leader else ""
            rank = "-" if worker.rank is None else str(worker.rank)
            table.add_row(rank, worker.id, worker.state.value, str(worker.step), str(worker.pid), crown)
        table.caption = f"generation {status.generation}, term {status.term}, step {status.step}, epoch {status.epoch}"
        return table

    def _say(self, line: str) -> None:
        self._console.print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, soft_wrap=True)

    def summary(self) -> None:
        """What each change cost the survivors."""
        table = Table(title="what the survivors lost")
        for column in ("change", "pause", "leave", "enter", "state"):
            table.add_column(column, justify="right")
        for event in self._events:
            if event.kind is Kind.SCALED:
                parts = [event.details.get(f"{name}_ms") for name in ("pause", "leave", "enter", "state")]
                cells = ["-" if part is None else f"{part:.0f} ms" for part in parts]
                table.add_row(f"{event.details['from']} -> {event.details['to']}", *cells)
        self._console.print(table)

    def output(self) -> str:
        """The last that the workers printed."""
        return "".join((self._home / "output.log").read_text(errors="replace").splitlines(keepends=True)[-25:])

    # ------------------------------------------------------------------------------------------------ small parts

    async def _until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if (
                self._status is not None
                and self._status.state in (JobState.FAILED, JobState.FINISHED)
                and "end" not in what
            ):
                raise SystemExit(f"demo: the job is {self._status.state.value} ({self._status.reason}) before {what}")
            if time.monotonic() > deadline:
                raise SystemExit(f"demo: gave up waiting for {what} after {PATIENCE_S:.0f} s")
            await asyncio.sleep(LOOK_S / 2)

    async def _more_steps(self, number: int) -> None:
        target = self._step() + number
        await self._until(lambda: self._step() >= target, f"step {target}")

    def _step(self) -> int:
        return self._status.step if self._status else 0

    def _size(self) -> int:
        return self._status.size if self._status and self._status.state is JobState.RUNNING else 0

    def _worker(self, which: Callable[[WorkerStatus], bool]) -> WorkerStatus:
        return next(worker for worker in (self._status.workers if self._status else ()) if which(worker))


def _details(event: Event) -> str:
    return " ".join(f"{name}={value}" for name, value in event.details.items() if value not in ("", None))


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=70, help="passes over the digits (default: 70)")
    options = parser.parse_args()
    console = Console(force_terminal=None, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="edl-demo-") as folder:
        demo = Demo(Path(folder), options.epochs, console)
        try:
            finished = asyncio.run(demo.run())
        except KeyboardInterrupt:
            console.print("demo: interrupted; its processes are gone")
            return 1
        except SystemExit:
            console.print(demo.output(), highlight=False)
            raise
        demo.summary()
        if not finished:
            console.print(demo.output(), highlight=False)
        console.print(f"demo: job {demo.job} {'finished' if finished else 'failed'}", highlight=False)
        return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
