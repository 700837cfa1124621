"""A job that grows and shrinks while it trains: nothing lost, nothing repeated, equal models at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SCHEDULER = Path(__file__).parents[2] / "examples" / "scheduler.py"


def test_a_job_grows_and_shrinks_and_trains_every_sample_once(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2)
    job.wait_size(2)
    newcomer = job.join()
    job.wait_size(3)
    leaver = next(worker for worker in job.status()["workers"] if worker["rank"] == 1)
    os.kill(leaver["pid"], signal.SIGTERM)
    job.wait_size(2)
    events = job.finish()
    assert newcomer.wait(30) == 0
    sizes = [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"]
    assert sizes == [(2, 3), (3, 2)]
    assert not any(event["forced"] for event in events if event["kind"] == "scaled")
    assert "batch_voided" not in {event["kind"] for event in events}
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()


def test_a_killed_worker_costs_the_survivors_one_batch(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=3)
    status = job.wait_size(3)
    victim = next(worker for worker in status["workers"] if worker["rank"] == 1)
    os.kill(victim["pid"], signal.SIGKILL)
    job.wait_size(2)
    events = job.finish()
    assert [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"] == [(3, 2)]
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()


def test_edl_scale_shrinks_and_says_the_pause(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2)
    job.wait_size(2)
    scaled = edl("scale", "s", "1", "--wait")
    assert scaled.returncode == 0, scaled.stderr
    assert "pause" in scaled.stdout
    assert scaled.stderr.splitlines()[-1] == "edl: 1 of 1 workers train"
    refused = edl("scale", "s", "0")
    assert refused.returncode != 0
    job.finish()
    job.expect_exactly_once()


def test_a_scheduler_grows_and_shrinks_a_running_job(edl, tmp_path):
    """`examples/scheduler.py`, with nothing but the job's name: by `edl.client.Job`."""
    job = Job(edl, tmp_path / "out", workers=2, EDL_MAX_NP="3")
    first = {worker["id"] for worker in job.wait_size(2)["workers"]}
    scheduler = subprocess.run(
        [sys.executable, str(SCHEDULER), "s", "--steps", "5"],
        env=edl.environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert scheduler.returncode == 0, scheduler.stdout + scheduler.stderr
    lines = scheduler.stdout.splitlines()
    assert [line for line in lines if "asked" in line or "train" in line][::2] == [
        "3 workers asked for",
        "2 workers train",
    ]
    assert [line.partition(":")[0] for line in lines if "paused" in line] == ["2 -> 3", "3 -> 2"]
    refused = edl("scale", "s", "9")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "at most 3 workers, so not 9: ask for 1 to 3" in refused.stderr
    assert edl("stop", "s", timeout_s=60).returncode == 0
    job.launcher.communicate(timeout=60)
    events = job.events()
    (newcomer,) = {event["worker"] for event in events if event["kind"] == "worker_ready"}
    assert {event["worker"] for event in events if event["kind"] == "worker_left"} == {newcomer}
    assert newcomer not in first
    grown, shrunk = [event for event in events if event["kind"] == "scaled"]
    assert grown["asked_ms"] > grown["switching_ms"] > 0 < grown["pause_ms"]
    assert (shrunk["from"], shrunk["to"], shrunk["forced"]) == (3, 2, False)


def test_a_killed_daemon_of_the_leader_is_replaced_and_the_job_goes_on(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2, EDL_SESSION_TIMEOUT="6")
    status = job.wait_size(2)
    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    os.kill(leader["daemon_pid"], signal.SIGKILL)

    def replaced() -> bool:
        now = job.status()
        daemons = {worker["daemon_pid"] for worker in now.get("workers", ())}
        return now.get("term", 0) > status["term"] and len(daemons) == 2 and leader["daemon_pid"] not in daemons

    edl.wait(replaced, "another leader, and another daemon", timeout_s=90)
    events = job.finish()
    kinds = Counter(event["kind"] for event in events)
    assert kinds["leader_elected"] >= 2
    assert (kinds["scaled"], kinds["worker_lost"]) == (0, 0)  # the ring was not touched
    job.expect_equal_models()
    job.expect_exactly_once()
