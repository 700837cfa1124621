"""Crashed and frozen workers are replaced while the others train on; with too few of them the job waits for more.

In one of the tests all boot that begins, as it would for a user: a fork has what a boot may lack.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

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


class ColdJob(Job):
    """Its launcher, its ZooKeeper, its workers and their daemons boot."""

    def run(self, script: Path) -> list[str]:
        return [sys.executable, str(script)]


@pytest.mark.soak  # with forked ones: test_scaling.py, test_mortal_workers.py
def test_where_all_boot_another_daemon_and_another_worker_take_the_places_of_killed_ones(edl, tmp_path):
    job = ColdJob(edl, tmp_path, 2, EDL_MAX_RESTARTS="1")
    status = job.wait_size(2)
    job.wait_steps(5)
    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    follower = next(worker for worker in status["workers"] if worker["id"] != status["leader"])
    assert {parent_of(worker["pid"]) for worker in status["workers"]} == {job.launcher.pid}

    os.kill(follower["daemon_pid"], signal.SIGKILL)

    def has_another_daemon() -> bool:
        daemons = {worker["id"]: worker["daemon_pid"] for worker in job.status()["workers"]}
        return daemons.get(follower["id"], follower["daemon_pid"]) != follower["daemon_pid"]

    edl.wait(has_another_daemon, "another daemon", timeout_s=60)
    job.wait_steps(5)
    os.kill(leader["pid"], signal.SIGKILL)
    edl.wait(lambda: lost(job), "it is known to be lost", timeout_s=60)
    job.wait_size(2)
    job.wait_steps(5)
    kinds = [event["kind"] for event in job.finish()]
    assert (kinds.count("worker_joining"), kinds.count("worker_lost")) == (2 + 1, 1)
    job.expect_equal_models()
    job.expect_exactly_once()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
