"""The demonstration: a real training that grows, loses a worker to kill -9 and shrinks while it trains.

Two workers train a digits classifier under `edl run`. A third process joins like any newcomer, by the job's name alone.
Then one worker is killed, and one is told to leave by SIGTERM. All the while the job is shown, here and on its page,
whose link is printed; at the end, what each change cost the survivors, a plot of it all, the page as one file, and a
picture of it where there is a chromium.
Exit code 0 if and only if the job finished.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from demo_view import Seen, View, picture, plot, table_of_pauses
from rich.console import Console

from edl.client import Job, JobState, Status, WorkerStatus
from edl.errors import EdlError

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 180.0
LOOK_S = 0.2
BATCH = 32
STEP_TIME = "0.05"  # so that three workers train more than two, also where they share two cores
LOSS = re.compile(r"step \d+ epoch \d+ size \d+ loss ([\d.]+)")  # as the example prints it
OVER = (JobState.FAILED, JobState.FINISHED)


class Demo:
    """The story, and the processes in it."""

    def __init__(self, home: Path, epochs: int, console: Console) -> None:
        self.job = f"demo-{secrets.token_hex(2)}"
        self.seen = Seen(BATCH)
        self._home = home
        self._epochs = epochs
        self._view = View(console, self.seen)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = home / "output.log"
        self._read = 0  # of the log
        self._page, self._page_told = home / "page.txt", False
        self._job: Job | None = None
        self._status: Status | None = None

    def run(self) -> bool:
        """Play it. True if the job finished."""
        launcher = self._start([_program("edl"), "run", "-np", "2", "--job", self.job])
        try:
            with self._view:
                self._until(lambda: self._step() > 0 or launcher.poll() is not None, "the first step")
                if launcher.poll() is None:
                    self._serve_page()
                self._until(lambda: self._step() > 50 or launcher.poll() is not None, "the first steps")
                if launcher.poll() is None:
                    self._play()
                self._until(lambda: launcher.poll() is not None, "the job's end")
                self._look()
        finally:
            self._clean_up()
        return launcher.returncode == 0

    def _play(self) -> None:
        self._view.say("a third worker joins: the others train on while it boots and rehearses")
        self._start([], {"EDL_JOB": self.job})
        self._until(lambda: self._size() == 3, "three workers")
        self._more_steps(100)
        victim = self._worker(lambda worker: worker.rank == 1)
        self._view.say(f"kill -9 {victim.pid}: worker {victim.id} of rank 1 is gone without a word")
        os.kill(victim.pid, signal.SIGKILL)
        self._until(lambda: self._size() == 2, "the survivors to go on")
        self._more_steps(100)
        leaver = self._worker(lambda worker: worker.rank == 1)
        self._view.say(f"kill -TERM {leaver.pid}: worker {leaver.id} is asked to leave")
        os.kill(leaver.pid, signal.SIGTERM)
        self._until(lambda: self._size() == 1, "the last one to go on")
        self._view.say("one worker is left, and trains the rest of the epochs: no sample is lost or repeated")

    # ------------------------------------------------------------------------------------------------- processes

    def _start(self, launcher: list[str], more: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        training = [sys.executable, str(ROOT / "examples" / "torch_digits.py")]
        options = ["--epochs", str(self._epochs), "--batch", str(BATCH), "--step-time", STEP_TIME]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*launcher, *training, *options],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "EDL_MAX_RESTARTS": "0", **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _serve_page(self) -> None:
        """Its link is there in a second or two: `_look` says it."""
        with self._page.open("wb") as link:
            process = subprocess.Popen(
                [_program("edl"), "dashboard", self.job],
                stdin=subprocess.DEVNULL,
                stdout=link,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)

    def _tell_of_page(self) -> None:
        if not self._page_told and self._page.exists() and (line := self._page.read_text()).endswith("\n"):
            self._page_told = True
            self._view.say(f"its page: {line.rpartition(' ')[2].strip()}")

    def report(self, file: Path) -> bool:
        """The page as one file. False: what makes it is not installed."""
        file.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            [_program("edl"), "report", self.job, "--html", str(file)], capture_output=True, check=False
        )
        return made.returncode == 0

    def _clean_up(self) -> None:
        if self._job is not None:
            self._job.close()
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(15)
                process.kill()

    # ------------------------------------------------------------------------------------------------ what is seen

    def _look(self) -> None:
        with contextlib.suppress(EdlError):  # it is not there yet, or its coordinator is gone already
            self._job = self._job or Job(self.job)
            self._status = self._job.status()
            self.seen.events[:] = self._job.events()
        self._tell_of_page()
        now = time.time()
        whole_lines = self._log.read_bytes()[self._read :].rpartition(b"\n")[0]
        self._read += len(whole_lines)
        self.seen.losses += [(now, float(loss)) for loss in LOSS.findall(whole_lines.decode(errors="replace"))]
        if self._status is not None:
            self.seen.add(self._status, now)
            self._view.show(self._status)

    def output(self) -> str:
        """The last that the workers printed."""
        return "".join(self._log.read_text(errors="replace").splitlines(keepends=True)[-25:])

    # ------------------------------------------------------------------------------------------------ small parts

    def _until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            status = self._status
            if status is not None and status.state in OVER and "end" not in what:
                raise SystemExit(f"demo: the job is {status.state.value} ({status.reason}) before {what}")
            if time.monotonic() > deadline:
                raise SystemExit(f"demo: gave up waiting for {what} after {PATIENCE_S:.0f} s")
            self._look()
            time.sleep(LOOK_S)

    def _more_steps(self, number: int) -> None:
        target = self._step() + number
        self._until(lambda: self._step() >= target, f"step {target}")

    def _step(self) -> int:
        return self._status.step if self._status else 0

    def _size(self) -> int:
        return self._status.size if self._status and self._status.state is JobState.RUNNING else 0

    def _worker(self, which: Callable[[WorkerStatus], bool]) -> WorkerStatus:
        return next(worker for worker in (self._status.workers if self._status else ()) if which(worker))


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=32, help="passes over the digits (default: 32)")
    parser.add_argument("--plot", type=Path, default=ROOT / "out" / "demo.png", help="a PNG (default: out/demo.png)")
    page = ROOT / "out" / "demo.html"
    parser.add_argument("--html", type=Path, default=page, help="the job's page as a file (default: out/demo.html)")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="edl-demo-") as folder:
        os.environ["EDL_HOME"] = folder
        demo = Demo(Path(folder), options.epochs, console)
        try:
            finished = demo.run()
        except KeyboardInterrupt:
            console.print("demo: interrupted; its processes are gone")
            return 1
        except SystemExit:
            console.print(demo.output(), highlight=False, markup=False)
            raise
        console.print(table_of_pauses(demo.seen))
        if not finished:
            console.print(demo.output(), highlight=False, markup=False)
        elif plot(demo.seen, options.plot):
            console.print(f"demo: throughput and loss over time are in {options.plot}", highlight=False)
        else:
            console.print("demo: no plot without matplotlib: .venv/bin/pip install 'horovod-edl[plot]'", markup=False)
        if finished and demo.report(options.html):
            console.print(f"demo: its page, as one file: {options.html}", highlight=False)
            image = options.html.resolve().with_name(f"{options.html.stem}-page.png")
            if picture(options.html.resolve(), image):
                console.print(f"demo: a picture of that page: {image}", highlight=False)
            else:
                console.print("demo: no picture of that page without a chromium that runs: apt-get install chromium")
        elif finished:
            console.print("demo: no page as one file: .venv/bin/pip install 'horovod-edl[dashboard]'", markup=False)
        console.print(f"demo: job {demo.job} {'finished' if finished else 'failed'}", highlight=False)
        return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
