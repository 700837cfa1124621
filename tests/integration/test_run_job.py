"""`edl run` with a real training job: daemons, a leader, a ring; how it ends, and that nothing is left of it.

The first one boots, as does a worker that is started by hand; the workers of the others are forks.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from pace import patient

from edl.coordination import zookeeper
from edl.coordination.zookeeper_server import LocalServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[2] / "examples" / "torch_digits.py"
DIGITS = [sys.executable, str(SCRIPT)]
ENDLESS = ["--epochs", "100000", "--step-time", "0.01"]


@pytest.fixture
def training(edl):
    """A job of two workers that trains: its launcher and its status."""
    command = [*edl.warm.command(SCRIPT), *ENDLESS]
    launcher = edl.start("run", "-np", "2", "--job", "x", *command, EDL_TEST_COORDINATOR="")  # with its own ZooKeeper
    edl.wait((edl.home / "jobs" / "x" / "record.json").exists, "record")

    def trains():
        assert launcher.poll() is None, launcher.communicate()
        status = edl.status("x")
        return status if status["state"] == "running" and status["step"] > 5 else None

    return launcher, edl.wait(trains, "training", timeout_s=120)


def ended(launcher) -> tuple[int, list[str]]:
    _, err = launcher.communicate(timeout=patient(60))
    return launcher.returncode, [line for line in err.splitlines() if line.startswith("edl: ")]


def test_a_job_that_finishes_is_told_of_afterwards(edl):
    long_enough = ("--epochs", "2", "--step-time", "0.02")  # to be seen while it runs
    launcher = edl.start("run", "-np", "2", "--job", "x", *DIGITS, *long_enough)
    out, err = launcher.communicate(timeout=patient(200))
    assert launcher.returncode == 0, err
    assert "[0]<stdout>:rank 0 of 2: " in out
    assert "[1]<stdout>:rank 1 of 2: " in out
    assert [line for line in err.splitlines() if line.startswith("edl: ")] == [
        "edl: job x is running with 2 workers; see `edl status x`",
        "edl: job x finished",
    ]
    status = edl.json("status", "x")
    assert (status["state"], status["size"], status["epoch"]) == ("finished", 2, 1)
    assert status["data"]["trained"] == status["data"]["total"] == 1797
    kinds = [json.loads(line)["kind"] for line in edl("events", "x", "--json").stdout.splitlines()]
    assert kinds[0] == "leader_elected"
    assert kinds[-1] == "job_finished"
    assert len(kinds) == len(edl("events", "x").stdout.splitlines())


def test_a_last_save_that_fails_fails_the_job_though_another_ends_later_and_well(edl, tmp_path):
    save = tmp_path / "save.py"
    save.write_text(
        f"import os, runpy, sys, time\nfrom edl import client\nsys.argv = {[*DIGITS[1:], '--epochs', '1']}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\nimport edl.torch as edl\nif edl.rank() == 0:\n"
        "    raise OSError('no space left')\nwith client.Job('x') as job:\n"
        "    while len(job.status().workers) == 2:\n        time.sleep(0.05)\n"
    )
    launcher = edl.start("run", "-np", "2", "--job", "x", *edl.warm.command(save), EDL_MAX_RESTARTS="3")
    _, err = launcher.communicate(timeout=patient(200))
    assert launcher.returncode == 1, err
    told = [line for line in err.splitlines() if line.startswith("edl: ")]
    assert not any("in place of what crashed" in line for line in told), err
    assert "did not come to the end of its script: OSError: no space left" in told[-1]
    status = edl.json("status", "x")
    assert (status["state"], status["data"]["trained"]) == ("failed", 1797)


@pytest.mark.slow
def test_a_status_names_the_processes(edl, training):
    launcher, status = training
    processes = edl.processes()
    for rank, worker in enumerate(status["workers"]):
        assert worker["rank"] == rank
        assert "torch_digits" in processes[worker["pid"]]
        assert worker["daemon_pid"] in processes
    launcher.send_signal(signal.SIGINT)
    assert ended(launcher) == (
        1,
        ["edl: job x is running with 2 workers; see `edl status x`", "edl: job x interrupted"],
    )
    assert edl.processes() == {}
    assert edl.json("status", "x")["reason"] == "interrupted"


@pytest.mark.soak  # one is started by hand in the README's blocks (test_listings.py)
def test_a_worker_that_was_started_by_hand_ends_with_the_launcher_whose_coordinator_it_needs(edl, training):
    launcher, _ = training
    joined = edl.start_command([*DIGITS, *ENDLESS], EDL_JOB="x")
    edl.wait(lambda: edl.status("x")["size"] == 3, "a third worker", timeout_s=120)
    launcher.send_signal(signal.SIGINT)
    assert ended(launcher)[1][1:] == ["edl: job x interrupted"]
    _, err = joined.communicate(timeout=patient(60))
    assert "interrupted" in err
    edl.wait_nothing_left()
    assert edl.json("status", "x")["reason"] == "interrupted"


def test_a_second_interrupt_ends_it_at_once(edl, training):
    launcher, _ = training
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.1)  # two at once are one to the kernel
    launcher.send_signal(signal.SIGINT)
    assert ended(launcher)[0] == 1
    assert edl.processes() == {}


@pytest.mark.slow
def test_nothing_outlives_a_killed_launcher_by_more_than_10_seconds(edl, training):
    launcher, _ = training
    launcher.kill()
    begun = time.monotonic()
    edl.wait_nothing_left()
    assert time.monotonic() - begun < patient(10)
    assert edl.json("status", "x")["reason"] == "edl run was killed"


def test_a_stopped_job_ends_and_followers_of_its_events_with_it(edl, training):
    launcher, _ = training
    follower = edl.start("events", "x", "--follow", "--json")
    stopped = edl("stop", "x")
    assert (stopped.returncode, stopped.stdout) == (0, "job x has ended\n")
    code, lines = ended(launcher)
    assert code == 1
    assert "stopped by `edl stop`" in lines[-1]
    told, _ = follower.communicate(timeout=patient(30))
    assert follower.returncode == 0
    assert json.loads(told.splitlines()[-1])["kind"] in {"job_failed", "job_finished"}


def test_a_job_that_cannot_go_on_says_why_and_where_to_look(edl, training):
    launcher, status = training
    for worker in status["workers"]:
        os.kill(worker["pid"], signal.SIGKILL)
    code, lines = ended(launcher)
    assert code == 1
    assert lines[-1].startswith("edl: job x failed: ")
    assert "see `edl events x`" in lines[-1]
    assert f"logs: {edl.home}/jobs/x/logs" in lines[-1]
    assert edl.processes() == {}


@pytest.mark.slow
def test_the_zookeeper_of_the_job_comes_back_when_it_dies(edl, training):
    launcher, status = training
    (server,) = edl.wait_process("QuorumPeerMain")
    os.kill(server, signal.SIGKILL)
    edl.wait(lambda: set(edl.wait_process("QuorumPeerMain")) - {server}, "another ZooKeeper")
    edl.wait(lambda: edl.json("status", "x")["step"] > status["step"] + 20, "steps")
    launcher.send_signal(signal.SIGINT)
    assert ended(launcher)[0] == 1


async def check_that_it_can_be_removed(edl, server, outside: list[str], elsewhere: dict[str, str]):
    store = await zookeeper.connect(server.coordinator, 10.0)
    try:
        assert "secret" not in await store.children("/edl/x")  # the first worker had left one
        kept = await asyncio.to_thread(partial(edl, "clean", "x", *outside, "--older-than", "3600", **elsewhere))
        assert re.fullmatch(r"kept: job x has been over for \d+ s only\n", kept.stdout)
        nothing = await asyncio.to_thread(partial(edl, "clean", *outside, "--older-than", "3600", **elsewhere))
        assert nothing.stdout.startswith("nothing to remove\nkept: x ")
        removed = await asyncio.to_thread(partial(edl, "clean", *outside, **elsewhere))
        assert removed.stdout == "removed job x (finished)\n"
        assert await store.read("/edl/x") is None
        gone = await asyncio.to_thread(edl, "clean", "x", *outside)
        assert (gone.returncode, gone.stderr) == (1, f"edl: there is no job x at {server.coordinator.hosts}\n")
    finally:
        await store.close()


async def test_a_coordinator_of_ones_own_remembers_a_job_that_is_over(edl, tmp_path):
    server = await LocalServer.start(tmp_path / "zookeeper")
    outside = ["--coordinator", server.coordinator.hosts]
    try:
        once = [*outside, "--job", "x", *edl.warm.command(SCRIPT), "--epochs", "1"]
        done = await asyncio.to_thread(edl, "run", *once, timeout_s=200)
        assert done.returncode == 0, done.stderr
        again = await asyncio.to_thread(edl, "run", *once)
        assert again.returncode == 2
        assert again.stderr.startswith("edl: job x is over already (finished) at ")
        elsewhere = {"EDL_HOME": str(tmp_path / "another machine")}
        shown = await asyncio.to_thread(partial(edl, "status", "x", *outside, "--json", **elsewhere))
        assert json.loads(shown.stdout)["state"] == "finished"
        told = await asyncio.to_thread(partial(edl, "events", "x", *outside, "--json", "--follow", **elsewhere))
        assert json.loads(told.stdout.splitlines()[-1])["kind"] == "job_finished"
        stopped = await asyncio.to_thread(partial(edl, "stop", "x", *outside, **elsewhere))
        assert stopped.stdout == "job x is over already (finished)\n"
        await check_that_it_can_be_removed(edl, server, outside, elsewhere)
        unknown = await asyncio.to_thread(edl, "status", "y", *outside)
        assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    finally:
        await server.stop()
