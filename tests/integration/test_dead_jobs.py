"""A job of which nothing is left but its checkpoints, and which `edl run` begins again by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from pace import patient
from saved_job import JOBS, Life

from edl.coordination.zookeeper_server import LocalServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
EVERY = ("--checkpoint-every", "15steps")


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["trainers", pytest.param("trainers and daemons", marks=pytest.mark.soak)])
def test_whose_workers_are_all_killed_goes_on_bit_for_bit(edl, tmp_path, victims):
    script = ("torch_saved.py", "--epochs", "4")
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish()
    environ = {"EDL_MAX_RESTARTS": "1"}
    slowly = ("--step-time", "0.2")
    job = Life(edl, tmp_path / "job", *script, *slowly, checkpoint=tmp_path / "ck", flags=EVERY, environ=environ)
    job.wait_event("checkpoint_durable")
    workers = job.status()["workers"]
    assert len(workers) == 2
    kinds = ("pid", "daemon_pid") if "daemons" in victims else ("pid",)
    for pid in [one[kind] for one in workers for kind in kinds]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    begun = job.wait_event("life_begun")
    assert (begun["life"], begun["restarts_left"]) == (2, 0)
    err = job.finish(timeout_s=120)
    assert f"job ck goes on from step {begun['from_step']}, {begun['path']}" in err
    assert job.results() == whole.results()


@pytest.mark.soak  # between two lives: tests/unit/launch/test_job_run.py
def test_that_is_asked_to_go_while_it_resumes_goes_at_once(edl, tmp_path):
    """Its next life boots: nothing of that is to be saved, and nothing is left running."""
    script = ("torch_saved.py", "--epochs", "1000")
    environ = {"EDL_MAX_RESTARTS": "1"}
    job = Life(edl, tmp_path / "job", *script, checkpoint=tmp_path / "ck", flags=EVERY, environ=environ)
    job.wait_event("checkpoint_durable")
    for worker in job.status()["workers"]:
        os.kill(worker["pid"], signal.SIGKILL)
    job.wait_event("life_begun")
    began = time.monotonic()
    job.launcher.send_signal(signal.SIGTERM)
    err = job.finish(75)
    assert time.monotonic() - began < patient(30)
    assert err.splitlines()[-1].startswith("edl: job ck is preempted, and goes on when the same line is typed again")


@pytest.mark.soak  # when it is over: tests/unit/launch/test_job_run.py
def test_that_fails_in_the_same_step_again_says_so_and_is_over(edl, tmp_path):
    script = ("torch_saved.py", "--epochs", "4", "--fails-at", "40", "--step-time", "0.02")
    job = Life(
        edl, tmp_path / "job", *script, checkpoint=tmp_path / "ck", flags=EVERY, environ={"EDL_MAX_RESTARTS": "9"}
    )
    err = job.finish(1, timeout_s=180)
    assert (
        "RuntimeError: batch 40 is too much; it had failed so before, and nothing beyond step" in err.splitlines()[-1]
    )
    assert 1 <= len(job.events("life_begun")) <= 3, "its steps, and when it is saved, are seen a little late"


@pytest.mark.soak  # what each line hears: tests/unit/launch/test_supervisor.py
async def test_that_two_lines_begin_at_once_goes_on_from_one_choice(edl, tmp_path):
    """Their machines do not see the same checkpoints. Workers wait for a file, so that both lines have chosen first."""
    script = ("torch_saved.py", "--epochs", "1000", "--step-time", "0.05")
    saved = Life(edl, tmp_path / "saved", *script, checkpoint=tmp_path / "ck", flags=EVERY)
    path = (await asyncio.to_thread(saved.wait_event, "checkpoint_durable"))["path"]
    await asyncio.to_thread(saved.kill)
    server, lines = await LocalServer.start(tmp_path / "zookeeper"), {}
    (tmp_path / "secret").write_text("s" * 40)
    (tmp_path / "secret").chmod(0o600)
    command = [sys.executable, str(JOBS / script[0]), "--out", str(tmp_path / "out"), *script[1:]]
    try:
        for name, folder in (("anew", "none"), ("resumes", "ck")):
            here = tmp_path / name
            waits = f'touch {here}.here; until [ -e {here}.go ]; do sleep 0.05; done; exec "$@"'
            flags = ["--coordinator", server.coordinator.hosts, "--checkpoint", str(tmp_path / folder)]
            lines[name] = edl.start(
                *("run", "--job", "ck", "--secret-file", str(tmp_path / "secret"), *flags, "sh", "-c", waits, "sh"),
                *command,
                EDL_HOME=str(here),
            )
        for name, line in lines.items():
            await asyncio.to_thread(edl.wait, (tmp_path / f"{name}.here").exists, f"a worker of {name}")
            assert line.poll() is None, line.communicate()
        (tmp_path / "anew.go").touch()
        said = await asyncio.to_thread(lines["anew"].stderr.readline)
        assert said.startswith("edl: job ck is running with 1 worker;")
        (tmp_path / "resumes.go").touch()
        _, err = await asyncio.to_thread(lines["resumes"].communicate, timeout=patient(60))
        assert lines["resumes"].returncode == 1
        assert "another line has begun it at its start, and here " in err.splitlines()[-1], err
        assert f"{Path(path).parent}/" in err.splitlines()[-1]
        assert lines["anew"].poll() is None, "the job of the other line goes on"
        lines["anew"].send_signal(signal.SIGINT)
        assert await asyncio.to_thread(lines["anew"].wait, patient(30)) == 1
    finally:
        await server.stop()
