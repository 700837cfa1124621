"""Which process of a cluster lives, and what may begin."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from edl.scheduler import processes
from edl.scheduler.places import ClusterHome


@pytest.fixture
def home(tmp_path: Path) -> ClusterHome:
    home = ClusterHome(tmp_path)
    home.make()
    return home


def test_who_only_asks_for_a_process_is_not_taken_for_it(home: ClusterHome) -> None:
    with home.lived("keeper") as ours:
        assert ours
        assert home.pid("keeper") == os.getpid()
    asks = os.open(home.run / "keeper.lock", os.O_RDWR)
    try:
        fcntl.flock(asks, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as pid() does, for a moment
        assert home.pid("keeper") is None
    finally:
        os.close(asks)


def test_a_process_that_was_spawned_before_the_cluster_was_told_to_end_does_not_begin(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[ClusterHome] = []

    async def keep(home: ClusterHome) -> None:
        begun.append(home)

    monkeypatch.setattr(processes, "keep", keep)
    home.ending.write_bytes(b"")
    assert processes.main("keeper", "", home) == 0
    assert begun == []
    home.ending.unlink()
    assert processes.main("keeper", "", home) == 0
    assert begun == [home]
