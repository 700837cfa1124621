"""Crashed and frozen workers are replaced while the others train on; with too few of them the job waits for more."""

from __future__ import annotations

import os
import signal

import pytest
from elastic_job import Job

from edl.testing.chaos import Chaos, Fault, What

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STEP_TIMEOUT_S = 6


def lost(job: Job) -> list[dict]:
    return [event for event in job.events() if event["kind"] == "worker_lost"]


def test_crashed_and_frozen_workers_are_replaced(edl, tmp_path):
    job = Job(edl, tmp_path, 3, EDL_MAX_RESTARTS="3", EDL_MIN_NP="2", EDL_STEP_TIMEOUT=str(STEP_TIMEOUT_S))
    job.wait_size(3)
    job.wait_steps(5)

    with Chaos("s") as chaos:
        frozen = chaos.inflict(Fault(What.FREEZE_TRAINER, "follower", 600.0))
        edl.wait(lambda: lost(job), "it is given up", timeout_s=60)
        job.wait_size(2)
        job.wait_steps(5)
    job.wait_size(3)  # thawed, it has ended by itself, so that another one was started
    (loss,) = lost(job)
    assert (loss["worker"], "took longer than --step-timeout" in loss["reason"]) == (frozen.worker, True)
    assert loss["ts"] - frozen.ts < 2.5 * STEP_TIMEOUT_S, "two step time-outs after that its seat would be missed"

    step = job.status()["step"]
    for worker in [worker for worker in job.status()["workers"] if worker["rank"] in (0, 1)]:
        os.kill(worker["pid"], signal.SIGKILL)  # one is left, fewer than allowed: it keeps the model
    edl.wait(lambda: len(lost(job)) == 3, "both are known to be lost", timeout_s=60)
    job.wait_size(3)
    job.wait_steps(5)
    assert job.status()["step"] > step, "nothing was trained again"
    kinds = [event["kind"] for event in job.finish()]
    assert "too_few_workers" in kinds  # told again by another leader, if the first was hit
    assert kinds.count("worker_joining") == 3 + 3
    job.expect_equal_models()
    job.expect_exactly_once()
