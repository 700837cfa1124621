"""How the processes of a worker are killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edl.host.host_processes import pid_space, process_start_time
from edl.launch.job_processes import MARK
from edl.scheduler import worker_folders
from edl.scheduler.worker_folders import mark_of


def test_the_worker_is_killed_before_what_it_has_started_whose_end_it_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, MARK: mark_of(tmp_path)}
    begun = [subprocess.Popen(["sleep", "60"], env=environ) for _ in range(9)]
    worker = begun[4].pid
    (tmp_path / "processes").write_text(f"{pid_space()} 0 0 {worker} {process_start_time(worker)}")
    opened: list[int] = []
    pidfd_open = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda pid: (opened.append(pid), pidfd_open(pid))[1])
    worker_folders.kill(tmp_path)
    assert [one.wait() for one in begun] == [-9] * 9
    assert opened[0] == worker
    assert sorted(opened) == sorted(one.pid for one in begun)
