"""The log of a process of a cluster has a bound."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from edl.scheduler.cluster_processes import ProcessLog


def test_a_log_begins_anew_beyond_its_bound_and_standard_error_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keeper.log"
    with path.open("a") as error:
        monkeypatch.setattr(sys, "stderr", error)
        log = ProcessLog(path, most_bytes=1000)
        for number in range(100):
            log.handle(logging.LogRecord("edl", logging.INFO, "", 0, f"line {number} \x1b[2J", (), None))
        os.write(error.fileno(), b"Traceback\n")
        log.close()
    files = sorted(tmp_path.iterdir())
    assert files == [path, tmp_path / "keeper.log.1"]
    assert all(one.stat().st_size <= 1000 + len("Traceback\n") for one in files)
    assert {one.stat().st_mode & 0o077 for one in files[:1]} == {0}
    last = path.read_text().splitlines()
    assert last[-1] == "Traceback" and "line 99 " in last[-2]
    assert "\x1b" not in path.read_text()
