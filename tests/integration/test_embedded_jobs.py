"""Whole jobs on the embedded coordinator: it is killed beside training, and it is for jobs of one machine."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest
from elastic_job import Job

from edl.coordination.child_server import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

EMBEDDED: dict[str, Any] = {"EDL_LOCAL_COORDINATOR": "embedded", "EDL_TEST_COORDINATOR": ""}  # one of its own
SERVER = "edl.coordination.embedded"


def elected(job: Job) -> int:
    return sum(event["kind"] == "leader_elected" for event in job.events())


@pytest.mark.slow
def test_a_job_outlives_its_coordinator_and_its_leader(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2, EDL_SESSION_TIMEOUT="5", EDL_MAX_RESTARTS="3", **EMBEDDED)
    job.wait_size(2)
    server = edl.wait_process(SERVER)
    os.kill(server[0], signal.SIGKILL)
    job.wait_steps(10)
    another = edl.wait_process(SERVER)
    assert another != server
    job.scale(3)
    status, elections = job.wait_size(3), elected(job)
    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    os.kill(leader["daemon_pid"], signal.SIGKILL)
    edl.wait(lambda: elected(job) > elections, "another leader", timeout_s=60)
    os.kill(another[0], signal.SIGKILL)
    job.scale(2)
    job.wait_size(2)
    events = job.finish()
    assert [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"] == [(2, 3), (3, 2)]
    assert "worker_lost" not in {event["kind"] for event in events}
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.parametrize(
    "line",
    [
        ("run", "-np", "1", "--zookeeper-port", str(free_port()), sys.executable, "-c", ""),
        ("cluster", "start", "--nodes", "localhost:1"),
    ],
    ids=lambda line: line[0],
)
def test_more_than_jobs_of_one_machine_is_refused_in_one_line(edl, line):
    done = edl(*line, **EMBEDDED)
    assert done.returncode == 2
    assert done.stderr.startswith("edl: --local-coordinator embedded: ") and done.stderr.count("\n") == 1
    assert "have a ZooKeeper or an etcd (--local-coordinator, or a running one by --coordinator)" in done.stderr


@pytest.mark.slow
def test_what_is_no_socket_is_one_line(edl):
    done = edl("run", "-np", "1", "--job", "x", "--coordinator", "embedded:///nowhere/socket", sys.executable, "-c", "")
    assert done.returncode == 2
    assert "is gone, and with it the `edl run` that had started it" in done.stderr and done.stderr.count("\n") == 1
