"""No worker leads: training goes on, and a scaling is carried out later.

Short forms of tests/soaks/leaders.py.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from elastic_job import Job

from edl.protocol.audit_lines import Committed
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STEPS_ON = 60  # about two seconds: a fifth of the session time-out


def slowest(job: Job) -> int:
    """The newest step that all have committed, by what they wrote down: no leader need answer."""
    steps = [[line.step for line in one.lines if isinstance(line, Committed)] for one in read(job.audit)]
    return min(max(of_one, default=0) for of_one in steps)


def wait_steps(job: Job) -> None:
    until = slowest(job) + STEPS_ON
    job.edl.wait(lambda: slowest(job) >= until, f"step {until} of all", timeout_s=60)


@pytest.mark.slow
def test_a_switch_that_was_announced_is_made_while_the_coordinator_is_away(edl, tmp_path):
    """The members find each other through their own daemons, so that none leaves a ring for one that cannot form."""
    here = tmp_path / "zookeeper.pid"
    environ: dict[str, Any] = {
        "EDL_TEST_DIE": "announced",
        "EDL_TEST_DIED": str(tmp_path / "died"),
        "EDL_TEST_ZOOKEEPER": str(here),
        "EDL_TEST_COORDINATOR": "",  # one of its own
    }
    job = Job(edl, tmp_path / "out", workers=2, **environ)
    job.wait_size(2)
    [server] = [pid for pid, command in edl.processes().items() if "org.apache.zookeeper" in command]
    here.write_text(str(server))
    newcomer = job.join()
    edl.wait((tmp_path / "died").exists, "a switch is announced", timeout_s=90)
    wait_steps(job)
    job.wait_size(3)
    events = job.finish()
    assert newcomer.wait(60) == 0
    assert [event["forced"] for event in events if event["kind"] == "scaled"] == [False]
    assert "batch_voided" not in {event["kind"] for event in events}
    job.expect_equal_models()
    job.expect_exactly_once()


def leader_of(status: dict) -> dict:
    return next(worker for worker in status["workers"] if worker["id"] == status["leader"])


def kinds(job: Job) -> list[str]:
    return [event["kind"] for event in job.events()]


@pytest.mark.soak  # leaders die at each moment in tests/simulation/test_jobs.py; a real one in test_scaling.py
@pytest.mark.parametrize(
    "epochs",
    [pytest.param(16, id="epochs at once", marks=pytest.mark.soak), pytest.param(None, id="epochs one by one")],
)
def test_no_step_waits_for_the_next_leader(edl, tmp_path, epochs):
    job = Job(edl, tmp_path / "out", workers=2, epochs=epochs, EDL_SESSION_TIMEOUT="10")
    job.wait_size(2)
    # Once it is known how long a step takes, leases reach two session time-outs ahead.
    edl.wait(lambda: (job.status()["data"] or {"ahead": 0})["ahead"] > 2 * STEPS_ON, "leases reach far ahead")
    job.wait_steps(STEPS_ON)  # the workers have heard of them: they train beyond what was leased first
    begun_at = slowest(job)
    for worker in job.status()["workers"]:  # all at once: none is left that has seen the leader's end
        os.kill(worker["daemon_pid"], signal.SIGKILL)
    without_a_leader = 0

    def is_led() -> bool:
        nonlocal without_a_leader
        steps = slowest(job) - begun_at
        if kinds(job).count("leader_elected") == 2:
            return True
        without_a_leader = steps
        return False

    edl.wait(is_led, "another leader", timeout_s=60)
    assert without_a_leader >= STEPS_ON / 4, "a step that waits would have waited for all of the session time-out"
    job.finish()
    assert kinds(job).count("leader_elected") == 2
    assert "batch_voided" not in kinds(job)
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.soak  # leaders die at each moment in tests/simulation/test_jobs.py; a real one in test_scaling.py
def test_a_leader_may_vanish_while_a_newcomer_warms_up(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2, EDL_SESSION_TIMEOUT="5", EDL_MAX_RESTARTS="1", EDL_TEST_REHEARSAL_S="1")
    leader = leader_of(job.wait_size(2))
    assert edl("scale", "s", "3").returncode == 0
    edl.wait(lambda: "worker_warming" in kinds(job), "the newcomer warms up", timeout_s=60)
    for pid in (leader["daemon_pid"], leader["pid"]):
        os.kill(pid, signal.SIGKILL)
    edl.wait(lambda: kinds(job).count("leader_elected") == 2, "another leader", timeout_s=60)
    job.wait_size(3)
    events = job.finish()
    assert [event["worker"] for event in events if event["kind"] == "worker_lost"] == [leader["id"]]
    job.expect_equal_models()
    job.expect_exactly_once()
