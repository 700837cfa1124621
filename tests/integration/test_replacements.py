"""Crashed workers are replaced while the others train on; with too few of them the job waits, and says why it ends."""

from __future__ import annotations

import os
import signal
import time

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def kill(job: Job, count: int) -> list[int]:
    """So many trainers of the ring, at once."""
    ring = sorted((w for w in job.status()["workers"] if w["rank"] is not None), key=lambda w: w["rank"])
    pids = [worker["pid"] for worker in ring[:count]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


def test_crashed_workers_are_replaced_as_often_as_allowed(edl, tmp_path):
    job = Job(edl, tmp_path, 3, EDL_MAX_RESTARTS="2", EDL_MIN_NP="2")
    job.wait_size(3)
    job.wait_steps(5)
    killed = kill(job, 1)
    edl.wait(lambda: [w["pid"] for w in job.status()["workers"] if w["pid"] in killed] == [], "it is known to be lost")
    job.wait_size(3)
    job.wait_steps(5)

    step = job.status()["step"]
    kill(job, 2)  # one is left, fewer than allowed: it keeps the model until another is there
    job.wait_size(2)
    job.wait_steps(5)
    assert job.status()["step"] > step, "nothing was trained again"
    kinds = [event["kind"] for event in job.events()]
    assert "too_few_workers" in kinds  # told again by another leader, if the first was hit
    assert kinds.count("worker_joining") == 3 + 2

    kill(job, 1)  # nobody is started any more
    out, err = job.launcher.communicate(timeout=60)
    assert job.launcher.returncode == 1, out + err
    assert "1 workers are left and the job needs 2" in err
    assert "edl: starting 1 more in place of what crashed" in err
    assert str(edl.environ["EDL_HOME"]) in err.splitlines()[-1] or "edl events" in err, "where to look"
    edl.wait_nothing_left()


def test_a_frozen_trainer_is_given_up_replaced_and_ends_when_it_thaws(edl, tmp_path):
    job = Job(edl, tmp_path, 3, EDL_MAX_RESTARTS="1", EDL_STEP_TIMEOUT="6")
    status = job.wait_size(3)
    job.wait_steps(5)
    frozen = next(worker for worker in status["workers"] if worker["id"] != status["leader"])
    os.kill(frozen["pid"], signal.SIGSTOP)
    began = time.monotonic()
    try:
        edl.wait(lambda: lost(job), "it is given up", timeout_s=60)
        took_s = time.monotonic() - began
        job.wait_size(2)
        job.wait_steps(5)
    finally:
        os.kill(frozen["pid"], signal.SIGCONT)
    job.wait_size(3)  # it has ended by itself, so that another was started
    events = job.finish()
    assert [event["worker"] for event in events if event["kind"] == "worker_lost"] == [frozen["id"]]
    assert "took longer than --step-timeout" in lost(job)[0]["reason"]
    assert took_s < 6 + 12, "that is what a missed seat would take, two step time-outs after the break"
    job.expect_equal_models()
    job.expect_exactly_once()


def lost(job: Job) -> list[dict]:
    return [event for event in job.events() if event["kind"] == "worker_lost"]
