"""`edl.client.Job` without a job: what it refuses by itself, and what it tells of one that is over."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from edl.client import Job, loop_thread
from edl.errors import ConfigError, TimedOut, UsageError
from edl.events import Event, Kind, from_flat
from edl.host.host_processes import process_start_time
from edl.launch.job_records import LaunchRecord, claim

RECORD = LaunchRecord(
    job="x", launcher_pid=1, launcher_start=1, mark="m", started=1.0, command=("python", "train.py"), np=2,
    min_workers=1, max_workers=None, own_coordinator=True, coordinator="127.0.0.1:1", state="finished", ended=2.0,
)  # fmt: skip
SCALED = Event(1.5, "x", Kind.SCALED, 1, 2, 30, {"from": 1, "to": 2, "pause_ms": 41.25})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "coordinator", "complaint"),
    [
        ("x", None, "no job x was started on this machine"),
        ("a/b", None, "name='a/b': must be 1 to 64 letters"),
        ("x", "zk", "coordinator='zk': must be HOST:PORT"),
        (None, None, "no job runs here: name one"),
    ],
)
def test_a_job_that_cannot_be_found_is_refused_at_once(name, coordinator, complaint):
    with pytest.raises((ConfigError, UsageError), match=complaint):
        Job(name, coordinator=coordinator)


def test_what_is_left_of_a_job_that_is_over(home):
    claim(home, RECORD).append_events([SCALED.to_json()])
    with Job("x") as job:
        assert job.status().state == "finished"
        assert job.events() == [SCALED]
        assert list(job.follow()) == [SCALED]
        with pytest.raises(ConfigError, match="job x is over: there is no worker to ask"):
            job.scale_out(1)


def starting(home: Path, **changes: object) -> None:
    """A record of a launcher that lives: this process."""
    pid = os.getpid()
    young = {"launcher_pid": pid, "launcher_start": process_start_time(pid), "state": "starting", "ended": None}
    claim(home, msgspec.structs.replace(RECORD, coordinator="", **(young | changes)))


def test_a_job_that_is_just_being_started_is_waited_for_no_longer_than_asked(home):
    starting(home)
    with Job("x") as job:
        with pytest.raises(TimedOut, match=r"no worker of job x has joined within 0\.3 s: it is being started"):
            job.wait(timeout=0.3)
        with pytest.raises(ConfigError, match="job x is just being started"):
            job.scale(2)


def test_a_job_whose_launcher_is_gone_is_not_waited_for(home):
    starting(home, launcher_start=1)
    with Job("x") as job, pytest.raises(ConfigError, match="job x is over"):
        job.wait(timeout=30)


def test_wrong_calls_name_the_argument(home):
    claim(home, RECORD)
    with Job("x") as job:
        with pytest.raises(UsageError, match="workers=0: must be a whole number of at least 1"):
            job.scale_out(0)
        with pytest.raises(UsageError, match="size=True: must be"):
            job.scale(True)
        with pytest.raises(UsageError, match=r"give a number, or a list of workers' ids: \['w1'\]"):
            job.scale_in("w1")
        with pytest.raises(UsageError, match="name at least one worker"):
            job.scale_in([])


def test_events_come_back_from_their_flat_form():
    assert from_flat(SCALED.flat()) == SCALED


def test_what_is_raised_in_the_loop_is_raised_to_the_caller():
    async def fail() -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        loop_thread().run(fail())
