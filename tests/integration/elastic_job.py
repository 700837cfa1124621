"""A job under `edl run` that grows and shrinks while it trains, and what must hold at its end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pace import patient

from edl import client
from edl.core.audit.sample_account import account
from edl.protocol.audit_lines import BatchGiven, Committed
from edl.trainer.data.audit_files import read

JOBS = Path(__file__).parent / "jobs"
SAMPLES = 203


class Job:
    """Trains at leisure until `finish`, or for so many epochs. Workers may join it from outside.

    `script`: one of `jobs/`, and its own arguments.
    """

    def __init__(
        self,
        edl,
        out: Path,
        workers: int,
        epochs: int | None = None,
        script: Sequence[str] = ("torch_elastic.py",),
        **environ: str,
    ) -> None:
        self.edl, self.out = edl, out
        self.epochs = epochs
        self.until = out / "epochs"
        self.script = JOBS / script[0]
        self.arguments = ["--out", str(out), "--until", str(self.until)]
        self.arguments += [] if epochs is None else ["--epochs", str(epochs), "--step-time", "0.03"]
        self.arguments += script[1:]
        self.command = [*self.run(self.script), *self.arguments]
        self.audit = out / "audit"
        self.deaths = out / "deaths"
        self.environ = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "EDL_AUDIT": str(self.audit),
            "EDL_TEST_DEATHS": str(self.deaths),
        }
        self.launcher = self.launch(workers, **environ)

    def run(self, script: Path) -> list[str]:
        """By a Python that has its framework imported already."""
        command: list[str] = self.edl.warm.command(script)
        return command

    def launch(self, workers: int, **environ: str) -> subprocess.Popen[str]:
        return self.edl.start("run", "-np", str(workers), "--job", "s", *self.command, **self.environ, **environ)

    def status(self) -> dict:
        return self.edl.status("s")

    def events(self) -> list[dict]:
        return self.edl.events("s")

    def join(self, *, container: Sequence[str] = (), **environ: str) -> subprocess.Popen[bytes]:
        """By hand. Who comes so and dies within a second, between two looks of `edl run`, is replaced by it.

        `container`: the command that runs another one in it; a warm Python would not be inside.
        """
        environ = {**self.edl.environ, **self.environ, "EDL_JOB": "s", **environ}
        command = [*container, sys.executable, str(self.script), *self.arguments] if container else self.command
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)

    def grow(self, size: int, *deaths: str) -> None:
        """By `edl run`. Each worker that it starts from now on dies of the next of these deaths (`jobs/mortal.py`)."""
        self.deaths.write_text("\n".join(deaths))
        self.scale(size)

    def scale(self, size: int) -> None:
        """As `edl scale` asks, without a process for it."""
        with client.Job("s") as job:
            job.scale(size)

    def wait_size(self, size: int) -> dict:
        def there() -> dict | None:
            status = self.status()
            assert status["state"] not in {"failed", "finished"}, f"{status}: {self.launcher.communicate()}"
            return status if status["size"] == size and status["state"] == "running" else None

        return self.edl.wait(there, f"{size} workers", timeout_s=90)

    def wait_steps(self, count: int) -> None:
        """Until so many more are made."""
        step = self.status()["step"] + count
        self.edl.wait(lambda: self.status()["step"] >= step, f"step {step}", timeout_s=90)

    def finish(self, *statuses: int) -> list[dict]:
        """Let the job end after the next few epochs, unless it has a number; its events. Its exit code is one of
        `statuses`; without any, 0.
        """
        hold = self.until.with_suffix(".hold")
        if self.epochs is None:
            # No worker may have begun the last one when the word comes, so they pause for as long as it takes. The
            # leader, if there is one, may not know all.
            hold.touch()
            begun = [line.epoch for one in read(self.audit) for line in one.lines if isinstance(line, BatchGiven)]
            self.epochs = max([self.status().get("epoch", 0), *begun]) + 3
        working = self.until.with_suffix(".new")
        working.write_text(str(self.epochs))
        working.rename(self.until)
        hold.unlink(missing_ok=True)
        out, err = self.launcher.communicate(timeout=patient(150))
        assert self.launcher.returncode in (statuses or (0,)), out + err
        self.edl.wait_nothing_left()  # daemons of workers that `edl run` did not start end a moment after them
        return self.events()

    # ------------------------------------------------------------------------------------------- what must hold

    def results(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in self.out.glob("result-*.json")]

    def expect_exactly_once(self) -> None:
        """Every sample of every epoch, whichever worker was killed in the middle of whatever."""
        found = account(read(self.audit))
        assert found.clean, found
        assert [(epoch.over, epoch.total, epoch.trained) for epoch in found.epochs] == (
            [(True, SAMPLES, SAMPLES)] * (self.epochs or 0)
        )

    def expect_batches_as_handed_out(self) -> None:
        """What scripts had in their hands, however they cut it, are the samples of their steps in that order.

        Of scripts that came to their end. They had more than that: rehearsals and stand-ins, which may look like a
        mini-batch of their own at another step, and a void mini-batch twice. One of a step that the others have ended,
        and this worker has not, may be in its hands or not: where the ring breaks in a graph, that gives nothing out.
        """
        handed_out = [given_and_ended(one.lines) for one in read(self.audit)]
        for result in self.results():
            assert any(checks and are_among(checks, result["checks"]) for checks in handed_out)

    def expect_equal_models(self) -> None:
        found = self.results()
        assert all(result["state"] == found[0]["state"] for result in found)
        assert {result["batches"] for result in found} == {found[0]["batches"]}


def given_and_ended(lines: Iterable[Any]) -> list[int]:
    """The checksums of what a worker was given for steps that it ended itself, in their order."""
    given = {line.step: line for line in lines if isinstance(line, BatchGiven)}
    ended = {line.step for line in lines if isinstance(line, Committed)}
    return [line.check for step, line in sorted(given.items()) if line.ranges and step in ended]


def are_among(wanted: list[int], had: list[int]) -> bool:
    """In that order, and perhaps others between them."""
    rest = iter(had)
    return all(one in rest for one in wanted)
