"""A job under `edl run --checkpoint` that is killed as a whole, and goes on as another life."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pace import patient

from edl import client
from edl.core.audit.kept_steps import lineage
from edl.protocol.audit_lines import BatchGiven
from edl.trainer.data.audit_files import read

JOBS = Path(__file__).parent / "jobs"
EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFEST = "manifest.json"


class Life:
    """One start of `edl run` and what came of it. Its output, and its audit, lie in folders of its own."""

    def __init__(self, edl: Any, folder: Path, script: str, *arguments: str, workers: int = 2, **how: Any) -> None:
        """`checkpoint`: the folder or URL; `flags`: of `edl run`; `audit`: whether it writes one; `environ`; `example`:
        whether the script is one, which writes no results; `framework`: another one that it needs than its text says.
        """
        self.edl, self.out, self.audit = edl, folder / "out", folder / "audit"
        self.checkpoint = how.get("checkpoint")
        flags = ["--checkpoint", str(self.checkpoint)] if self.checkpoint else []
        flags += ["--audit", str(self.audit)] if how.get("audit") else []
        flags += how.get("flags", ())
        scripts, told = (EXAMPLES, []) if how.get("example") else (JOBS, ["--out", str(self.out)])
        command = [*edl.warm.command(scripts / script, how.get("framework", "")), *told, *arguments]
        environ = {"TF_CPP_MIN_LOG_LEVEL": "3", "EDL_SESSION_TIMEOUT": "5", **how.get("environ", {})}
        self.began = time.time()
        self.launcher: subprocess.Popen[str] = edl.start(
            "run", "-np", str(workers), "--job", "ck", *flags, *command, **environ
        )

    def status(self) -> dict[str, Any]:
        """While it lives; what is said of the life before it counts for nothing."""
        found: dict[str, Any] = self.edl.status("ck")
        assert self.launcher.poll() is None, self.launcher.communicate()
        if found["state"] in {"failed", "finished", "preempted"}:
            self.edl.look_away("ck")
        return found

    def step(self) -> int:
        """Of this life: until it has a leader, the status may be that of the life before, which is over."""
        status = self.status()
        return int(status["step"]) if status["state"] in {"running", "scaling"} else 0

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        return [event for event in self.edl.events("ck") if kind in ("", event["kind"]) and event["ts"] > self.began]

    def wait_size(self, size: int) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            status = self.status()
            return status if status["size"] == size and status["state"] == "running" else None

        found: dict[str, Any] = self.edl.wait(there, f"{size} workers", timeout_s=90)
        return found

    def wait_step(self, step: int) -> None:
        self.edl.wait(lambda: self.step() >= step, f"step {step}", timeout_s=60)

    def wait_event(self, kind: str, more_than: int = 0) -> dict[str, Any]:
        """The newest one, once there are more than so many."""

        def there() -> list[dict[str, Any]] | None:
            found = self.events(kind)
            if len(found) <= more_than:
                self.status()
            return found if len(found) > more_than else None

        found: list[dict[str, Any]] = self.edl.wait(there, f"{more_than + 1} times {kind}", timeout_s=60)
        return found[-1]

    def wait_durable_after(self, kind: str) -> None:
        """A checkpoint becomes durable that is announced from now on."""
        begun = len(self.events("checkpoint_begun"))
        self.wait_event("checkpoint_begun", begun)
        number = self.events("checkpoint_begun")[begun]["number"]
        durable = lambda: [one for one in self.events("checkpoint_durable") if one["number"] >= number]  # noqa: E731
        self.edl.wait(durable, f"one is durable after {kind}", timeout_s=60)

    def wait_failure(self) -> str:
        """The reason of the next checkpoint that comes to nothing, in one line."""
        reason: str = self.wait_event("checkpoint_failed", len(self.events("checkpoint_failed")))["reason"]
        assert reason and "\n" not in reason, reason
        return reason

    def interrupt(self) -> None:
        self.status()
        self.launcher.send_signal(signal.SIGINT)
        self.finish(1)

    def scale(self, size: int) -> None:
        with client.Job("ck") as job:
            job.scale(size)

    def pid(self, rank: int) -> int:
        [found] = [worker["pid"] for worker in self.status()["workers"] if worker["rank"] == rank]
        return int(found)

    def kill(self) -> None:
        """Launcher, workers and daemons, at once."""
        self.launcher.kill()
        self.launcher.wait()
        for pid in self.edl.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.edl.wait_nothing_left()
        self.launcher.communicate()
        self.edl.look_away("ck")

    def finish(self, code: int = 0, timeout_s: float = 60) -> str:
        """What it said on standard error."""
        out, err = self.launcher.communicate(timeout=patient(timeout_s))
        assert self.launcher.returncode == code, out + err
        self.edl.wait_nothing_left()
        self.edl.look_away("ck")
        return err

    def results(self) -> list[dict[str, Any]]:
        """Of all lives the same, by rank."""
        found = [json.loads(path.read_text()) for path in self.out.glob("result-*.json")]
        return sorted(found, key=lambda one: int(one["rank"]))

    def steps(self) -> set[int]:
        """The one that each worker would have made next, of this life."""
        return {int(path.read_text()) for path in self.out.glob("step-*")}

    def trained(self, until: int | None = None) -> Counter[tuple[int, int]]:
        """How often each position of each epoch was, up to a step of this life."""
        audits, found = read(self.audit), Counter[tuple[int, int]]()
        for span in lineage(audits):
            steps = range(span.after_step + 1, min(span.until_step, until or span.until_step) + 1)
            for audit in audits:
                if audit.worker not in span.members:
                    continue
                lines = {line.step: line for line in audit.lines if isinstance(line, BatchGiven)}
                for piece in (piece for step in steps if step in lines for piece in lines[step].ranges):
                    found.update((piece.epoch, position) for position in range(piece.start, piece.stop))
        return found


def durable(folder: Path) -> list[Path]:
    """All checkpoints of the job in `folder` that have a manifest, the newest first."""
    return sorted((path.parent for path in folder.glob(f"ck/*/{MANIFEST}")), reverse=True)


def manifest(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text())["manifest"]
    return found


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


@contextlib.contextmanager
def leaves_nothing_shared(edl: Any) -> Iterator[None]:
    """Between trainers and their daemons, in memory: in a folder of this test alone, as other jobs may be here."""
    place = Path(tempfile.mkdtemp(prefix="edl-test-", dir="/dev/shm"))  # a socket's path must be short
    edl.environ["XDG_RUNTIME_DIR"] = str(place)
    try:
        yield
        assert not [str(path) for path in place.rglob("*")], "files of a job were left in memory"
    finally:
        shutil.rmtree(place)
