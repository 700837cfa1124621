"""A job in a folder of its own, which is measured from outside: started, waited for, told to end.

Owns: the job's processes and what it prints. Does not own: the notes of its workers (`edl.proof.step_figures`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from edl.core.audit.sample_account import account
from edl.errors import EdlError
from edl.proof.step_figures import NotedSteps, set_file
from edl.trainer.data.audit_files import read

EDL = (sys.executable, "-P", "-m", "edl")  # of this very installation
END_S = 30.0


class NotComeTrue(EdlError):
    """A job did not come so far in time, or has ended; the message has its last lines."""


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def edl_run(workers: int, name: str, *flags: str) -> list[str]:
    return [*EDL, "run", "-np", str(workers), "--job", name, *flags]


class MeasuredJob:
    """A job in a folder of its own. The given command has begun it; `edl` is asked about it by its name."""

    own_session: ClassVar[bool] = False  # True: a terminal's Ctrl-C reaches the caller only, who ends the job

    def __init__(self, folder: Path, command: Sequence[str], *, name: str = "job", **environ: str) -> None:
        self.folder, self.name = folder, name
        self.environ = {
            **os.environ,
            "EDL_HOME": str(folder / "home"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **environ,
        }
        self.notes = NotedSteps(folder)
        with (folder / "output.log").open("wb") as log:
            self.launcher = subprocess.Popen(
                list(command),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=self.own_session,
            )

    def edl(self, *arguments: str) -> str:
        """Return what the command of edl prints. Raises EdlError."""
        command = [*EDL, *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EdlError(f"edl {' '.join(arguments)}: {done.stderr}\n{self.log()}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.edl("status", self.name, "--json"))
        return found

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.edl("events", self.name, "--json").splitlines()]

    def look(self) -> None:
        """Repeat this while the job is waited for. It does nothing where a launcher does the work."""

    def wait(self, true: Callable[[], Any], what: str, patience_s: float = 300.0) -> None:
        deadline = time.monotonic() + patience_s
        while not true():
            self.look()
            code = self.launcher.poll()
            if code is not None or time.monotonic() > deadline:
                raise NotComeTrue(f"never: {what} (exit {code}); the last lines:\n{self.log()}")
            time.sleep(0.1)

    def trains(self, size: int, steps: int, since: float = 0.0) -> bool:
        """Return whether `size` workers have each made their last `steps` steps at that size, since that moment."""
        made = [noted["step"][-steps:] for noted in self.notes.read().values()]
        at_it = [all(note["size"] == size and note["at"] > since for note in last) for last in made]
        return sum(len(last) == steps and so for last, so in zip(made, at_it, strict=True)) >= size

    def set(self, name: str, step: int) -> None:
        """Set what all workers do after the step `step`: `name` is the file that they look for."""
        set_file(self.folder / name, str(step))

    def stop(self, after_steps: int = 50) -> None:
        """End all workers `after_steps` steps after the newest one, and wait; end the job by a signal otherwise."""
        if self.launcher.poll() is None:
            self.set("stop", self.notes.newest() + after_steps)
        self.end()

    def end(self) -> None:
        """Wait for the job's end, and bring it about if it does not come."""
        try:
            self.launcher.wait(END_S)
        except subprocess.TimeoutExpired:
            self.launcher.terminate()
            try:
                self.launcher.wait(END_S)
            except subprocess.TimeoutExpired:
                self.launcher.kill()  # horovodrun waits for ever for workers that all crashed
                self.launcher.wait()

    def log(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-3000:]


def wait_true(true: Callable[[], bool], patience_s: float) -> bool:
    """Return whether the condition came true in time."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def audited(folder: Path) -> dict[str, Any]:
    """Sum up the audit in a folder over all samples."""
    found = account(read(folder))
    return {
        "trained": sum(epoch.trained for epoch in found.epochs),
        "epochs": len(found.epochs),
        "lost": sum(epoch.lost for epoch in found.epochs),
        "repeated": sum(epoch.repeated for epoch in found.epochs),
        "wrong": found.wrong,
    }
