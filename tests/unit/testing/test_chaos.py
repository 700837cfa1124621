"""Whom the chaos kit strikes, and with what; on processes of our own that stand for a job's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.protocol.record import JobState, WorkerState
from edl.testing import chaos as kit
from edl.testing.chaos import At, Chaos, Fault, Rage, What


class FakeJob:
    """What `edl.client.Job` shows; each look is a step further."""

    def __init__(self) -> None:
        self.name = "j"
        self.processes = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(6)]
        self.step, self.target = 0, 3
        self.state = JobState.RUNNING
        self.leader = "w1"

    def status(self) -> SimpleNamespace:
        self.step += 1
        pids = [process.pid for process in self.processes]
        workers = tuple(
            SimpleNamespace(
                id=f"w{i}", rank=i, host=socket.gethostname(), pid=pids[i], daemon_pid=pids[3 + i], state=state
            )
            for i, state in enumerate([WorkerState.TRAINING] * 3)
        )
        return SimpleNamespace(
            step=self.step, target=self.target, state=self.state, leader=self.leader, workers=workers
        )

    def scale(self, size: int) -> None:
        self.target = size

    def close(self) -> None:
        """Lets go of a connection."""

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeJob]:
    fake = FakeJob()
    monkeypatch.setattr("edl.client.Job", lambda _: fake)
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    yield fake
    fake.end()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("who", "ids"),
    [("leader", {"w1"}), ("follower", {"w0", "w2"}), ("rank 2", {"w2"}), ("w0", {"w0"}), ("any", {"w0", "w1", "w2"})],
)
def test_who_is_meant(job: FakeJob, who: str, ids: set[str]) -> None:
    with Chaos("j", seed=3) as chaos:
        for _ in range(20):
            struck = chaos.inflict(Fault(What.FREEZE_DAEMON, who, 0.0))
            assert struck is not None
            assert struck.worker in ids
        assert {struck.worker for struck in chaos.struck} == ids


def test_no_worker_is_struck_where_none_is_meant(job: FakeJob) -> None:
    with Chaos("j") as chaos:
        assert chaos.inflict(Fault(What.KILL_TRAINER, "newcomer")) is None
        assert chaos.inflict(Fault(What.KILL_TRAINER, "rank 7")) is None
        assert chaos.inflict(Fault(What.KILL_COORDINATOR)) is None, "this job has none of its own"
        assert chaos.struck == []


def test_a_whole_worker_is_killed_at_once(job: FakeJob) -> None:
    with Chaos("j") as chaos:
        struck = chaos.inflict(Fault(What.KILL_WORKER, "leader"))
    assert struck is not None
    assert struck.pids == (job.processes[4].pid, job.processes[1].pid)
    assert [job.processes[i].wait(5) for i in (1, 4)] == [-signal.SIGKILL] * 2


def test_what_is_frozen_thaws_in_its_time_and_at_the_end(job: FakeJob) -> None:
    with Chaos("j") as chaos:
        chaos.inflict(Fault(What.FREEZE_TRAINER, "rank 0", 1.0))
        chaos.inflict(Fault(What.FREEZE_TRAINER, "rank 2", 60.0))
        until = time.monotonic() + 30
        for index in (0, 2):
            while state_of(job.processes[index].pid) != "T":
                assert time.monotonic() < until
        while state_of(job.processes[0].pid) == "T":
            assert time.monotonic() < until
            chaos.wait(0.02)
        assert state_of(job.processes[2].pid) == "T"
        pid = job.processes[2].pid
        chaos.thaw()
        assert state_of(pid) != "T"


def test_a_plan_strikes_at_its_steps_and_ends_with_the_job(job: FakeJob) -> None:
    with Chaos("j") as chaos:
        plan = [At(30, Fault(What.JOIN)), At(10, Fault(What.LEAVE, "rank 0"))]
        struck = chaos.follow(plan)
        assert [(one.fault.what, one.step >= at) for one, at in zip(struck, (10, 30), strict=True)] == [
            (What.LEAVE, True),
            (What.JOIN, True),
        ]
        assert job.target == 4
        assert job.processes[0].wait(5) == -signal.SIGTERM
        job.state = JobState.FINISHED
        assert chaos.follow([At(10**6, Fault(What.JOIN))]) == []


def test_at_random_one_worker_is_left_to_train(job: FakeJob) -> None:
    with Chaos("j", seed=1) as chaos:
        for _ in range(40):
            chaos.strike(Rage(faults=(What.KILL_TRAINER, What.FREEZE_TRAINER, What.LEAVE), freeze_s=(60, 60)))
        assert len(chaos.struck) == 1, "two of three are left then"
        assert chaos.strike(Rage(faults=(What.KILL_DAEMON,))) is not None, "that costs no trainer"


def test_between_faults_the_caller_looks_and_may_end_it(job: FakeJob) -> None:
    looks = []

    def look() -> None:
        looks.append(len(chaos.struck))
        if len(chaos.struck) == 2:
            raise InterruptedError

    with Chaos("j") as chaos, pytest.raises(InterruptedError):
        chaos.rage(60.0, Rage(faults=(What.JOIN,), every_s=(0.01, 0.02), most=100), look)
    assert looks == [0, 1, 2]


def test_a_rage_ends_in_its_time_and_with_the_job(job: FakeJob) -> None:
    with Chaos("j") as chaos:
        assert chaos.rage(0.1, Rage(faults=(What.JOIN,), every_s=(60.0, 60.0))) == []
        job.state = JobState.FINISHED
        assert chaos.rage(60.0, Rage(faults=(What.JOIN,), every_s=(0.01, 0.02))) == []


def test_a_seed_strikes_the_same(job: FakeJob) -> None:
    def told(seed: int) -> list[tuple[str, str]]:
        with Chaos("j", seed=seed) as chaos:
            for _ in range(8):
                chaos.strike(Rage(faults=(What.FREEZE_DAEMON, What.JOIN), freeze_s=(0, 0), most=100))
            return [(struck.fault.what.value, struck.worker) for struck in chaos.struck]

    assert told(5) == told(5) != told(6)


def test_each_is_told_of(job: FakeJob) -> None:
    lines: list[str] = []
    with Chaos("j", say=lines.append) as chaos:
        chaos.inflict(Fault(What.FREEZE_DAEMON, "rank 1", 0.5))
    assert lines == [f"step 1: freeze daemon of rank 1 for 0.5 s (w1), {job.processes[4].pid}"]


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos", "nosuch"])
    monkeypatch.setenv("EDL_HOME", f"/nowhere/{os.getpid()}")
    assert kit.main() == 2
    assert "no job nosuch" in capsys.readouterr().err
