"""Records of jobs on this machine: who may have a name, what is kept, and for how long."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edl.errors import ConfigError
from edl.host.host_processes import process_start_time
from edl.launch.job_processes import is_running
from edl.launch.job_records import KEEP, Folder, LaunchRecord, claim, find, records


def a_record(job: str = "mnist", pid: int | None = None, **changes: object) -> LaunchRecord:
    pid = os.getpid() if pid is None else pid
    record = LaunchRecord(
        job=job, launcher_pid=pid, launcher_start=process_start_time(pid) or 0, mark="m", started=1.0,
        command=("python", "train.py"), np=2, min_workers=1, max_workers=None, own_coordinator=True,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_record_is_for_its_user_alone(tmp_path):
    home = tmp_path / "home"
    folder = claim(home, a_record())
    folder.write_secret(b"abc")
    folder.write_status(b"{}")
    folder.append_events(["{}"])
    assert {mode(path) for path in (home, home / "jobs", folder.path, folder.logs)} == {0o700}
    assert {mode(path) for path in folder.path.iterdir() if path.is_file()} == {0o600}


def test_the_mode_of_a_home_that_was_there_is_left_alone(tmp_path):
    tmp_path.chmod(0o755)
    claim(tmp_path, a_record())
    assert mode(tmp_path) == 0o755


def test_a_name_is_taken_while_its_launcher_lives(tmp_path):
    claim(tmp_path, a_record())
    with pytest.raises(ConfigError, match=rf"job mnist is running here already \(edl run, pid {os.getpid()}\)"):
        claim(tmp_path, a_record())
    claim(tmp_path, a_record("other"))


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_a_name_is_free_once_its_job_is_over(tmp_path, state):
    folder = claim(tmp_path, a_record())
    folder.append_events(["{}"])
    folder.write(a_record(state=state))
    assert not claim(tmp_path, a_record()).events.exists()


def test_a_name_is_free_once_its_launcher_is_dead(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        record = a_record(pid=launcher.pid)
        claim(tmp_path, record)
        assert record.alive
        launcher.kill()
        os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
        assert not record.alive, "a zombie does not live"
        claim(tmp_path, a_record())


def test_a_launcher_on_another_machine_with_the_same_home_lives_while_it_holds_its_lock(tmp_path):
    """The other machine is played by a record whose pid is of another space."""
    there = a_record("long", launcher_pid=2**22 - 1, space="another", host="h2")
    folder = claim(tmp_path, there)  # this process holds the lock
    for number in range(KEEP + 2):
        claim(tmp_path, a_record(f"short{number}", launcher_start=1))
    assert folder.read().alive
    with pytest.raises(ConfigError, match=r"running here already \(edl run, pid 4194303 on h2\)"):
        claim(tmp_path, a_record("long"))
    folder.life.unlink()
    assert not folder.read().alive
    claim(tmp_path, a_record("long"))


def test_another_process_with_the_same_pid_is_not_the_launcher():
    assert is_running(os.getpid(), process_start_time(os.getpid()) or 0)
    assert not a_record(launcher_start=1).alive


def test_only_the_latest_of_those_that_are_over_are_kept(tmp_path):
    for number in range(KEEP + 5):
        claim(tmp_path, a_record(f"old{number}", started=float(number))).write(
            a_record(f"old{number}", started=float(number), state="finished")
        )
    claim(tmp_path, a_record("living", started=-1.0))
    known = [record.job for _, record in records(tmp_path)]
    assert known == [f"old{number}" for number in range(KEEP + 4, 4, -1)] + ["living"]


def test_a_folder_without_a_readable_record_is_no_job(tmp_path):
    (tmp_path / "jobs" / "odd").mkdir(parents=True)
    assert find(tmp_path, "odd") is None
    (tmp_path / "jobs" / "odd" / "record.json").write_text('{"job": "odd"')
    assert find(tmp_path, "odd") is None
    assert records(tmp_path) == []
    claim(tmp_path, a_record("odd"))
    assert find(tmp_path, "odd") is not None


def test_a_home_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"EDL_HOME=.*file: cannot keep records there: .*; set EDL_HOME"):
        claim(tmp_path / "file", a_record())


def test_a_record_that_was_removed_does_not_end_its_job(tmp_path):
    folder = Folder(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        folder.write(a_record())
    folder.update(a_record(state="running"))
    assert folder.read() is None


def test_a_reader_sees_whole_records_only(tmp_path):
    folder = Folder(tmp_path)
    folder.write(a_record())
    folder.write(a_record(state="running"))
    assert folder.read() == a_record(state="running")
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
