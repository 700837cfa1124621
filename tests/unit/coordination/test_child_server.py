"""How a local server is started, without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edl.coordination import child_server, zookeeper_server
from edl.coordination.child_server import dying_with
from edl.coordination.embedded.embedded_server import LocalEmbedded
from edl.coordination.etcd import etcd_server
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.errors import ConfigError
from edl.file_lock import open_lock


async def test_one_without_a_program_leaves_nothing_outside_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sockets lie elsewhere where its folder's name is long."""
    sockets = tmp_path / "sockets"
    monkeypatch.setenv("EDL_ETCD", str(tmp_path / "none"))
    monkeypatch.setattr(etcd_server, "_for_sockets", lambda _: sockets)
    sockets.mkdir()
    with pytest.raises(ConfigError, match="is no program that can be run"):
        await child_server.started(LocalEtcd(tmp_path, "127.0.0.1", 0))
    assert not sockets.exists()


async def test_a_server_inherits_the_lock_of_its_folder(tmp_path: Path) -> None:
    """So that no other begins there while it lives, though its launcher was killed."""

    class Listing(LocalEmbedded):
        def _command(self) -> list[str]:
            return ["ls", "-l", "/proc/self/fd"]

    server = Listing(tmp_path, "127.0.0.1", 0, open_lock(tmp_path / "lock"))
    server.spawn()
    assert await server.wait_exit() == 0
    assert str(tmp_path / "lock") in server.log.read_text()
    await server.stop()


def test_a_command_whose_parent_was_gone_before_the_kernel_knew_does_not_begin() -> None:
    """No launcher would end it: `edl run` was killed between the fork and that."""
    orphan = subprocess.run(dying_with(1, ["echo", "begun"]), capture_output=True, text=True, check=False)
    assert (orphan.returncode, orphan.stdout) == (1, "")


def test_a_command_of_a_living_parent_begins_with_its_own_words() -> None:
    child = subprocess.run(
        dying_with(os.getpid(), ["printf", "%s|", "a b", "$c"]), capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stdout) == (0, "a b|$c|")


@pytest.mark.parametrize(("before", "after"), [({}, "/a/_gate.so"), ({"LD_PRELOAD": "b.so"}, "/a/_gate.so:b.so")])
def test_a_server_begins_behind_the_gate(monkeypatch, before, after) -> None:
    monkeypatch.setattr(zookeeper_server, "find_gate", lambda: Path("/a/_gate.so"))
    assert zookeeper_server.gated({"HOME": "/h", **before}) == {"HOME": "/h", "LD_PRELOAD": after}


def test_without_a_gate_its_environment_stays_as_it_is(monkeypatch) -> None:
    monkeypatch.setattr(zookeeper_server, "find_gate", lambda: None)
    assert zookeeper_server.gated({"HOME": "/h"}) == {"HOME": "/h"}
