"""A real job leaves its host for another: two network namespaces, and a ZooKeeper on a third."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from pace import patient

from tests.soaks.migrate_job import JOB, NEW, OLD, MovedJob
from tests.soaks.wired_net import why_no_wires

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_no_wires()), reason=why_no_wires() or "-"),
]
STEPS = 30
BOOT_S = 240.0


@pytest.mark.soak  # faults at each moment: tests/simulation/test_migrations.py; a real job moves in test_tutorials.py
def test_all_workers_and_their_leader_leave_a_host_while_the_job_trains(tmp_path: Path) -> None:
    with MovedJob(tmp_path, 20) as job:
        job.run(OLD, 2)
        job.wait("a job that trains", lambda: len(job.steps()) > STEPS, patient(BOOT_S))

        alone = job.edl("migrate", JOB, "--from", OLD)
        assert (alone.returncode, alone.stderr.count("\n")) == (1, 1)
        assert "all its workers are on alpha: say where they are to go by --to HOST:SLOTS" in alone.stderr

        stays = job.edl("migrate", JOB, "--from", OLD, "--to", f"{NEW}:2", "--timeout", "2")
        assert stays.returncode == 1
        assert "0 of 2 workers have come to beta within 2 s, those on alpha stay" in stays.stderr
        assert {worker["host"] for worker in job.status()["workers"]} == {OLD}

        job.run(NEW, 0)
        moved = job.edl("migrate", JOB, "--from", OLD, "--to", f"{NEW}:2")
        assert moved.returncode == 0, moved.stderr + job.story()
        assert "has left alpha; its survivors paused for" in moved.stdout
        assert {worker["host"] for worker in job.status()["workers"]} == {NEW}

        so_far = len(job.steps())
        job.wait("a job that trains on", lambda: len(job.steps()) > so_far + STEPS, patient(60))
        job.wait("the end of `edl run` there", lambda: job.launches[OLD].poll() == 0, patient(60))
        account = job.finish(patient(120))
        assert account["clean"], account
        assert job.launches[NEW].poll() == 0
        steps = job.steps()
        assert all(after[1] - before[1] == 1 for before, after in pairwise(steps)), "a step is missing"
        assert {size for _, _, size, _ in steps} == {2}, "it has kept its size all along"
        kinds = [event["kind"] for event in job.events()]
        assert [kind for kind in kinds if kind.startswith("migrat")] == [
            "migrating",
            "migration_failed",
            "migrating",
            "migrated",
        ]
        assert "batch_voided" not in kinds
        assert "worker_lost" not in kinds


SHARDED = Path(__file__).parent / "jobs" / "sharded.py"


@pytest.mark.soak  # a migration and workers of two processes are each shown by themselves
def test_workers_of_two_processes_leave_a_host_whole(tmp_path: Path) -> None:
    """The `SLOTS` of `--to HOST:SLOTS` are workers."""
    (tmp_path / "pace").write_text("0.05")
    script = (sys.executable, str(SHARDED), "--out", str(tmp_path), "--pace", str(tmp_path / "pace"))
    flags = ("--processes", "2", "--ring", "torch")
    with MovedJob(tmp_path, 0, *flags, worker=(*script, "--stop", str(tmp_path / "stop"))) as job:
        job.run(OLD, 2)
        job.run(NEW, 0)
        job.wait("a job that trains", lambda: job.status().get("step", 0) > STEPS, patient(BOOT_S))
        moved = job.edl("migrate", JOB, "--from", OLD, "--to", f"{NEW}:2")
        assert moved.returncode == 0, moved.stderr + job.story()
        status = job.status()
        assert [(one["host"], len(one["processes"])) for one in status["workers"]] == [(NEW, 2)] * 2
        job.wait("a job that trains on", lambda: job.status()["step"] > status["step"] + STEPS, patient(60))
        job.wait("the end of `edl run` there", lambda: job.launches[OLD].poll() == 0, patient(60))
        kinds = {event["kind"] for event in job.events()}
        assert "migrated" in kinds and not kinds & {"batch_voided", "worker_lost"}
        (tmp_path / "stop").touch()
        job.wait("the end", lambda: job.launches[NEW].poll() is not None, patient(120))
        assert job.launches[NEW].poll() == 0, job.story()
        account = job.edl("data", "verify", str(tmp_path / "audit"))
        assert account.returncode == 0, account.stdout


SAVED_AND_MOVED = f"""
import json
from edl.client import Job

with Job({JOB!r}) as job:
    saved = job.checkpoint()
    job.migrate({OLD!r}, to="{NEW}:2", timeout={BOOT_S})
    print(json.dumps([saved, sorted({{worker.host for worker in job.status().workers}})]))
"""
PREEMPTED = f"""
import json
from edl.client import Job

with Job({JOB!r}) as job:
    over = job.preempt(deadline=60.0)
    print(json.dumps([over.state.value, over.reason]))
"""


@pytest.mark.soak  # each call by itself: tests/unit, and the examples of its docstrings
def test_edl_client_saves_moves_and_preempts_a_job(tmp_path: Path) -> None:
    """And the command line saves it before."""
    folder = tmp_path / "ck"
    with MovedJob(tmp_path, 1, "--checkpoint", str(folder), "--checkpoint-every", "1000000steps") as job:
        job.run(OLD, 2)
        job.run(NEW, 0)
        job.wait("a job that trains", lambda: len(job.steps()) > STEPS, patient(BOOT_S))

        typed = job.edl("checkpoint", JOB, "--wait")
        assert typed.returncode == 0, typed.stderr + job.story()
        said, _, first = typed.stdout.strip().partition("is saved: ")
        assert said == f"job {JOB} "
        assert job.edl("checkpoint", "verify", first).returncode == 0

        called = job.run_there(sys.executable, "-c", SAVED_AND_MOVED)
        assert called.returncode == 0, called.stderr + job.story()
        second, hosts = json.loads(called.stdout)
        assert hosts == [NEW]
        assert job.launches[OLD].wait(patient(60)) == 0, "the job goes on elsewhere"

        called = job.run_there(sys.executable, "-c", PREEMPTED)
        assert called.returncode == 0, called.stderr + job.story()
        state, reason = json.loads(called.stdout)
        assert state == "preempted"
        last = reason.partition(" is saved: ")[2]
        assert Path(first).name < Path(second).name < Path(last).name, "each is a checkpoint of its own"
        for path in (second, last):  # two are kept
            assert job.edl("checkpoint", "verify", path).returncode == 0
        assert job.launches[NEW].wait(patient(60)) == 75
