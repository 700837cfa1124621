"""Under `edl run` newcomers and replacements are forked from a process that has imported what workers have, and their
daemons from another one.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job

from edl.scheduler.worker_wrapper import status

pytestmark = pytest.mark.integration

STACK = 28 - 3  # of /proc/PID/stat: where the stack begins, which is another place in each new process


class ForkingJob(Job):
    """Its workers are started as they are typed."""

    def run(self, script: Path) -> list[str]:
        return ["python", str(script)]


def stack(pid: int) -> str:
    return status(pid)[STACK]


def warm_starts(edl: Any) -> str:
    return str(json.loads((edl.home / "jobs" / "s" / "record.json").read_text())["warm_starts"])


def daemon_of(job: Job, pid: int) -> int:
    return next(int(worker["daemon_pid"]) for worker in job.status()["workers"] if worker["pid"] == pid)


@pytest.mark.slow
@pytest.mark.parametrize("ring", [pytest.param("torch", marks=pytest.mark.soak), "horovod"])
def test_a_newcomer_and_a_replacement_are_forked_and_so_are_their_daemons(edl: Any, tmp_path: Path, ring: str) -> None:
    job = ForkingJob(edl, tmp_path / "out", 1, EDL_WARM_STARTS="eager", EDL_MAX_RESTARTS="1", EDL_RING=ring)
    first = job.wait_size(1)["workers"][0]["pid"]
    edl.wait(lambda: warm_starts(edl).startswith("on: "), "a process to fork from", timeout_s=120)
    [warm] = edl.wait_process("warm_process.py workers")
    [daemons] = edl.wait_process("warm_process.py daemons")
    job.scale(2)
    [newcomer] = {worker["pid"] for worker in job.wait_size(2)["workers"]} - {first}
    assert stack(newcomer) == stack(warm) != stack(first)
    assert status(newcomer)[1] == status(first)[1], "its parent is the launcher, too"
    forked, anew = daemon_of(job, newcomer), daemon_of(job, first)
    assert stack(forked) == stack(daemons) != stack(anew)
    assert status(forked)[1] == status(anew)[1], "it is as little a child of any part of the job"
    os.kill(newcomer, signal.SIGKILL)

    def replaced() -> set[int]:
        seen = job.status()
        return {worker["pid"] for worker in seen["workers"] if seen["size"] == 2} - {first, newcomer}

    [replacement] = edl.wait(replaced, "a replacement", timeout_s=90)
    assert stack(replacement) == stack(warm)
    forked = daemon_of(job, replacement)
    assert stack(forked) == stack(daemons)
    os.kill(forked, signal.SIGKILL)  # the trainer starts another one, and trains on
    edl.wait(lambda: daemon_of(job, replacement) != forked, "another daemon", timeout_s=90)
    assert stack(daemon_of(job, replacement)) == stack(daemons)
    job.wait_steps(3)
    job.finish()
    assert edl("data", "verify", str(job.audit)).returncode == 0
    edl.wait_nothing_left()


@pytest.mark.soak  # where all boot: test_replacements.py
def test_without_it_a_newcomer_is_started_as_the_first_ones(edl: Any, tmp_path: Path) -> None:
    """The processes that they are forked from are killed: a newcomer comes all the same, and forked ones live on."""
    job = ForkingJob(edl, tmp_path / "out", 1, EDL_WARM_STARTS="eager")
    first = job.wait_size(1)["workers"][0]["pid"]
    edl.wait(lambda: warm_starts(edl).startswith("on: "), "a process to fork from", timeout_s=120)
    [warm] = edl.wait_process("warm_process.py workers")
    [daemons] = edl.wait_process("warm_process.py daemons")
    shown = stack(daemons)
    os.kill(daemons, signal.SIGKILL)
    job.scale(2)
    [forked] = {worker["pid"] for worker in job.wait_size(2)["workers"]} - {first}
    assert stack(forked) == stack(warm)
    assert stack(daemon_of(job, forked)) != shown
    os.kill(warm, signal.SIGKILL)
    job.scale(3)
    pids = {worker["pid"] for worker in job.wait_size(3)["workers"]}
    assert {first, forked} < pids
    job.finish()
    edl.wait_nothing_left()
