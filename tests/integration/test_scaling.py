"""A job that grows and shrinks while it trains: nothing lost, nothing repeated, equal models at the end."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest
from elastic_job import Job
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
RINGS = pytest.mark.parametrize("ring", ["horovod", "torch"])


@RINGS
def test_a_job_grows_and_shrinks_and_trains_every_sample_once(edl, tmp_path, ring):
    job = Job(edl, tmp_path / "out", workers=2, EDL_RING=ring)
    assert job.wait_size(2)["ring"] == ring
    newcomer = job.join(EDL_RING=ring)
    job.wait_size(3)
    leaver = next(worker for worker in job.status()["workers"] if worker["rank"] == 1)
    os.kill(leaver["pid"], signal.SIGTERM)
    job.wait_size(2)
    events = job.finish()
    assert newcomer.wait(patient(30)) == 0
    sizes = [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"]
    assert sizes == [(2, 3), (3, 2)]
    assert not any(event["forced"] for event in events if event["kind"] == "scaled")
    assert "batch_voided" not in {event["kind"] for event in events}
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.soak  # who leaves, and by whose word: tests/unit/core/resize/test_scale_requests.py
def test_a_signal_to_all_of_a_worker_lets_it_leave(edl, tmp_path):
    """As systemd sends it: its daemon, which may be the leader's, dies of it before any other has heard of the wish."""
    job = Job(edl, tmp_path / "out", workers=3, EDL_SESSION_TIMEOUT="8")
    status = job.wait_size(3)
    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    other = next(worker for worker in status["workers"] if worker["id"] != status["leader"])
    for leaver, left in ((other, 2), (leader, 1)):
        os.kill(leaver["daemon_pid"], signal.SIGTERM)
        os.kill(leaver["pid"], signal.SIGTERM)
        assert job.wait_size(left)["target"] == left
    events = job.finish()
    assert {event["worker"] for event in events if event["kind"] == "worker_left"} == {other["id"], leader["id"]}
    assert not any(event["forced"] for event in events if event["kind"] == "scaled")
    job.expect_exactly_once()


@RINGS
def test_workers_that_are_killed_whole_cost_no_session_time_out(edl, tmp_path, ring):
    """Trainer and daemon at once: others of their host see it, though each session would live for a minute."""
    job = Job(edl, tmp_path / "out", workers=3, EDL_SESSION_TIMEOUT="60", EDL_MAX_RESTARTS="0", EDL_RING=ring)
    status = job.wait_size(3)
    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    other = next(worker for worker in status["workers"] if worker["id"] != status["leader"])
    for left, victim in ((2, leader), (1, other)):
        for pid in (victim["daemon_pid"], victim["pid"]):
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        job.wait_size(left)
        job.wait_steps(1)
        assert time.monotonic() - killed < patient(20)
    events = job.finish()
    lost = [(event["worker"], event["cause"]) for event in events if event["kind"] == "worker_lost"]
    assert lost == [(leader["id"], "died"), (other["id"], "died")]
    job.expect_exactly_once()


def test_a_killed_daemon_of_the_leader_is_replaced_and_the_job_goes_on(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2, EDL_SESSION_TIMEOUT="60")  # which neither of the two waits for
    status = job.wait_size(2)
    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    os.kill(leader["daemon_pid"], signal.SIGKILL)
    killed = time.monotonic()

    def replaced() -> bool:
        now = job.status()
        assert now["state"] not in {"failed", "finished"}, f"{now}: {job.launcher.communicate()}"
        daemons = {worker["daemon_pid"] for worker in now.get("workers", ())}
        return now.get("term", 0) > status["term"] and len(daemons) == 2 and leader["daemon_pid"] not in daemons

    edl.wait(replaced, "another leader, and another daemon", timeout_s=150)
    assert time.monotonic() - killed < patient(20)
    events = job.finish()
    kinds = Counter(event["kind"] for event in events)
    assert kinds["leader_elected"] >= 2
    assert (kinds["scaled"], kinds["worker_lost"]) == (0, 0)  # the ring was not touched
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces of processes: needs root")
def test_a_container_that_is_killed_costs_no_session_time_out(edl, tmp_path):
    """Trainer and daemon at once, and the others cannot see its processes: its host says that no process listens."""
    container = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    job = Job(edl, tmp_path / "out", workers=1, EDL_SESSION_TIMEOUT="60", EDL_MAX_RESTARTS="0")
    job.wait_size(1)
    first = job.join(container=container)
    job.wait_size(2)
    second = job.join(container=container)
    status = job.wait_size(3)
    leader = next(worker for worker in status["workers"] if worker["id"] == status["leader"])
    follower = next(worker["id"] for worker in status["workers"] if worker["rank"] == 1)

    def kill_follower() -> None:
        first.kill()

    def kill_leader() -> None:
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # a trainer that outlives its daemon has a next one
            for pid in (leader["daemon_pid"], leader["pid"]):
                os.kill(pid, signum)

    for left, kill in ((2, kill_follower), (1, kill_leader)):
        kill()
        killed = time.monotonic()
        job.wait_size(left)
        job.wait_steps(1)
        assert time.monotonic() - killed < patient(20)
    assert first.wait() == -signal.SIGKILL
    job.finish()
    assert second.wait(patient(30)) == 0
    lost = {event["worker"]: event["cause"] for event in job.events() if event["kind"] == "worker_lost"}
    assert list(lost) == [follower, leader["id"]]
    # the daemon of the other may be the last of its container to die, and say so
    assert lost[leader["id"]] == "session"
    job.expect_exactly_once()
