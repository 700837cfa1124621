"""Whole jobs on an etcd: they grow, shrink, lose their leader and their coordinator, and train each sample once."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job

from edl.coordination.child_server import free_port
from edl.protocol.audit_lines import Committed
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ETCD: dict[str, Any] = {"EDL_LOCAL_COORDINATOR": "etcd", "EDL_TEST_COORDINATOR": ""}  # one of its own
STEPS_ON = 30


def kinds(job: Job) -> list[str]:
    return [event["kind"] for event in job.events()]


def newest_step(job: Job) -> int:
    """By the workers' own notes: no coordinator need answer."""
    steps = [[line.step for line in one.lines if isinstance(line, Committed)] for one in read(job.audit)]
    return min(max(of_one, default=0) for of_one in steps)


@pytest.mark.slow
def test_a_job_grows_shrinks_and_outlives_its_leader_and_its_etcd(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2, EDL_SESSION_TIMEOUT="5", EDL_MAX_RESTARTS="3", **ETCD)
    status = job.wait_size(2)
    [server] = edl.wait_process("--listen-client-urls")
    assert not any("zookeeper" in command for command in edl.processes().values())
    job.scale(3)
    job.wait_size(3)

    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    os.kill(leader["daemon_pid"], signal.SIGKILL)
    edl.wait(lambda: kinds(job).count("leader_elected") == 2, "another leader", timeout_s=60)

    os.kill(server, signal.SIGKILL)
    [another] = edl.wait(
        lambda: [pid for pid, line in edl.processes().items() if "--listen-client-urls" in line and pid != server],
        "edl run starts it again",
    )
    assert another != server
    job.scale(2)
    job.wait_size(2)
    events = job.finish()
    assert [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"] == [(2, 3), (3, 2)]
    assert "worker_lost" not in {event["kind"] for event in events}
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.soak  # as test_without_a_leader.py has it with a ZooKeeper
def test_training_goes_on_while_etcd_does_not_answer(edl, tmp_path):
    """I11: with leases in hand, steps are made; and all heals when it answers again."""
    job = Job(edl, tmp_path / "out", workers=2, epochs=16, EDL_SESSION_TIMEOUT="10", **ETCD)
    job.wait_size(2)
    [server] = edl.wait_process("--listen-client-urls")
    edl.wait(lambda: (job.status()["data"] or {"ahead": 0})["ahead"] > 2 * STEPS_ON, "leases reach far ahead")
    job.wait_steps(STEPS_ON)  # the workers have heard of them
    os.kill(server, signal.SIGSTOP)
    until = newest_step(job) + STEPS_ON
    edl.wait(lambda: newest_step(job) >= until, "training goes on", timeout_s=60)
    os.kill(server, signal.SIGCONT)
    events = job.finish()
    assert {"worker_lost", "batch_voided"}.isdisjoint({event["kind"] for event in events})
    job.expect_equal_models()
    job.expect_exactly_once()


def test_without_java_it_says_which_coordinator_it_took(edl, tmp_path):
    """All programs of this machine but java, as far as a job needs them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("etcd", "setpriv", "sh", "ip", "env"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    path = {"PATH": str(programs), "JAVA_HOME": "", "EDL_TEST_COORDINATOR": ""}
    done = edl("run", "-np", "1", "--job", "x", sys.executable, "-c", "", **path)
    told = [line for line in done.stderr.splitlines() if "on this machine" in line]
    assert told == [f"edl: no Java on this machine: the local coordinator is an etcd ({programs / 'etcd'})"], done
    assert edl("status", "x").returncode == 0
    (programs / "etcd").unlink()
    done = edl("run", "-np", "1", "--job", "y", sys.executable, "-c", "", **path)
    told = done.stderr.splitlines()[0]
    assert told.startswith("edl: no Java and no etcd on this machine: the local coordinator is edl's own, for jobs of")
    for line in (
        ("run", "-np", "1", "--zookeeper-port", str(free_port()), sys.executable, "-c", ""),
        ("cluster", "start", "--nodes", "localhost:1"),
    ):
        done = edl(*line, **path)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert "openjdk-17-jre-headless" in done.stderr and "etcd-server" in done.stderr


@pytest.mark.soak  # a job on an etcd: above; what is removed: tests/contract/test_remains.py
def test_commands_find_a_job_at_an_outside_etcd_and_clean_up_after_it(edl, tmp_path):
    etcd = tmp_path / "etcd"
    server = edl.start_command(
        [sys.executable, "-m", "edl.coordination", "--etcd", str(etcd), str(free_port())], PYTHONUNBUFFERED="1"
    )
    address = f"{server.stdout.readline().strip().removeprefix('EDL_COORDINATOR=')}/team/a"
    assert address.startswith("etcd://127.0.0.1:")
    job = Job(edl, tmp_path / "out", workers=1, EDL_COORDINATOR=address)
    job.wait_size(1)
    elsewhere = {"EDL_HOME": str(tmp_path / "elsewhere"), "EDL_COORDINATOR": address}
    secret = tmp_path / "home" / "jobs" / "s" / "secret"
    if secret.exists():
        elsewhere["EDL_SECRET_FILE"] = str(secret)
    assert "job s: running" in edl("status", "s", **elsewhere).stdout
    assert edl("hosts", "s", **elsewhere).returncode == 0
    job.scale(2)
    job.wait_size(2)
    assert edl("stop", "s", **elsewhere).returncode == 0
    job.launcher.communicate(timeout=60)
    assert edl("clean", "s", **elsewhere).returncode == 0
    assert edl("status", "s", **elsewhere).returncode != 0
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    gone = edl("status", "s", **elsewhere)
    assert gone.returncode != 0
    assert "refuses the connection" in gone.stderr and "etcd runs" in gone.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("etcd:/127.0.0.1:2379", "must be HOST:PORT"),
        ("consul://127.0.0.1:2379", "begins with zookeeper:// or etcd://"),
        ("etcd://127.0.0.1", "must be HOST:PORT"),
        ("etcd://127.0.0.1:2379/a//b", "ends in a /path with an empty part"),
        (
            "etcd://127.0.0.1:1",
            "127.0.0.1:1 refuses the connection: nothing listens there; check the port, and that etcd",
        ),
    ],
)
def test_a_wrong_address_is_one_line_and_exit_code_2(edl, address, told):
    done = edl("run", "-np", "1", "--job", "x", "--coordinator", address, sys.executable, "-c", "")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert told in done.stderr


@pytest.mark.slow
def test_each_kind_is_told_from_the_other(edl, tmp_path):
    server = edl.start_command(
        [sys.executable, "-m", "edl.coordination", "--etcd", str(tmp_path / "etcd"), str(free_port())],
        PYTHONUNBUFFERED="1",
    )
    address = server.stdout.readline().strip().removeprefix("EDL_COORDINATOR=etcd://")
    done = edl("run", "-np", "1", "--job", "x", "--coordinator", address, sys.executable, "-c", "")
    assert f"is an etcd: name it as etcd://{address}" in done.stderr
    shared = Path(edl.warm.coordinator())
    edl.wait(shared.exists, "a ZooKeeper")
    done = edl(
        "run", "-np", "1", "--job", "x", "--coordinator", f"etcd://{shared.read_text()}", sys.executable, "-c", ""
    )
    assert "is a ZooKeeper server: name it as HOST:PORT, without etcd://" in done.stderr
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
