"""A job of which nothing is left but its checkpoints, and which `edl run` begins again by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest
from saved_job import Life

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
EVERY = ("--checkpoint-every", "15steps")


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
    assert time.monotonic() - began < 30
    assert err.splitlines()[-1].startswith("edl: job ck is preempted, and goes on when the same line is typed again")


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
