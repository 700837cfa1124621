"""The life of a local server, without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.coordination import local_life
from edl.coordination.etcd import etcd_process
from edl.coordination.etcd.etcd_process import EtcdProcess
from edl.errors import ConfigError


async def test_one_without_a_program_leaves_nothing_outside_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sockets lie elsewhere where its folder's name is long."""
    sockets = tmp_path / "sockets"
    monkeypatch.setenv("EDL_ETCD", str(tmp_path / "none"))
    monkeypatch.setattr(etcd_process, "_for_sockets", lambda _: sockets)
    sockets.mkdir()
    with pytest.raises(ConfigError, match="is no program that can be run"):
        await local_life.started(EtcdProcess(tmp_path, tmp_path / "data", "127.0.0.1", 0))
    assert not sockets.exists()
