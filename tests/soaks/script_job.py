"""A job whose script is another project's, in a folder of its own: run, asked and watched by edl's own commands.

Owns: what benchmarks of such scripts have in common. What is changed in a script, and what is good, is theirs.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

JOB: Final = "theirs"
PATIENCE_S, END_S = 300.0, 900.0


def difference(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and line[:3] not in {"+++", "---"}]


class NotSeenError(Exception):
    """What must come true in a job did not."""


BY_RUN: Final = ("run", "-np", "2", "--max-np", "3", "--job", JOB)
BY_TORCHRUN: Final = ("torchrun", "--nproc-per-node", "2", "--nnodes", "1:3", "--rdzv-id", JOB)


class ScriptJob:
    """A job of two workers, and of three at most, that `running` starts and ends."""

    def __init__(
        self,
        folder: Path,
        scripts: Path,
        starts: Sequence[str] = BY_RUN,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`scripts`: where the job runs, inside of `folder`, in which all of it is; `variables`: more of its own."""
        self.output, self._scripts = folder / "output", scripts
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
        self._environ = {**os.environ, **quiet, "HF_HUB_OFFLINE": "1", "EDL_HOME": str(folder / "home")} | dict(
            variables
        )
        self._starts = starts
        self._edl = str(Path(sys.executable).with_name("edl"))

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """`arguments`: more flags, and what a worker runs."""
        command = [self._edl, *self._starts, *arguments]
        with self.output.open("wb") as output:
            job = subprocess.Popen(
                command, cwd=self._scripts, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            yield job
        finally:
            if job.poll() is None:
                job.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(30)

    def edl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._edl, *arguments]
        return subprocess.run(
            command, cwd=self._scripts, env=self._environ, capture_output=True, text=True, check=False
        )

    def scale(self, workers: int) -> None:
        done = self.edl("scale", JOB, str(workers), "--wait", "--timeout", "300")
        if done.returncode:
            raise NotSeenError(f"edl scale: {done.stderr.strip()}")

    def status(self) -> dict[str, Any]:
        done = self.edl("status", JOB, "--json")
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def events(self) -> list[dict[str, Any]]:
        done = self.edl("events", JOB, "--json")
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def wait_past(self, step: int, what: str, job: subprocess.Popen[bytes]) -> None:
        """Wait until the job has made more steps than so many."""
        deadline = time.monotonic() + PATIENCE_S
        while self.status().get("step", 0) <= step:
            if job.poll() is not None:
                raise NotSeenError(f"it ended with {job.returncode} before {what}")
            if time.monotonic() > deadline:
                raise NotSeenError(f"not within {PATIENCE_S:g} s: {what}")
            time.sleep(0.3)
