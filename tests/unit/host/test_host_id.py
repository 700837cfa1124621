"""Which processes see each other's pids."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edl.host import host_processes as host_ids
from edl.host.host_processes import host_id


def test_all_processes_of_a_host_have_one() -> None:
    said = [sys.executable, "-c", "from edl.host.host_processes import host_id; print(host_id('10.0.0.1'))"]
    other = subprocess.run(said, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == host_id("10.0.0.1") != host_id("10.0.0.2")


def test_in_a_namespace_of_its_own_a_process_has_another() -> None:
    """There a pid means another process."""
    said = [sys.executable, "-c", "from edl.host.host_processes import host_id; print(host_id('10.0.0.1'))"]
    alone = ["unshare", "--pid", "--fork", "--mount-proc", *said]
    other = subprocess.run(alone, capture_output=True, text=True, check=False)
    if other.returncode:
        pytest.skip(f"this user may make no namespaces: {other.stderr.strip()}")
    assert other.stdout.strip() not in {host_id("10.0.0.1"), "None"}


def test_a_system_that_does_not_say_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(host_ids, "BOOT", tmp_path / "none")
    assert host_id("10.0.0.1") is None
