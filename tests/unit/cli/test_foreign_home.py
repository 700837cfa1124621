"""An EDL_HOME that another user made: no command uses it, nor believes the secret in it."""

from __future__ import annotations

import os
import secrets

import pytest

from edl.cli import main
from edl.config.settings import check_home
from edl.errors import ConfigError
from edl.scheduler.cluster_home import ClusterHome

STRANGER = 65534


@pytest.fixture
def foreign(monkeypatch):
    """Make a path another user's, or this process another user."""

    def made(path):
        if os.geteuid() == 0:
            os.chown(path, STRANGER, STRANGER)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: STRANGER)

    return made


@pytest.mark.parametrize(
    "words",
    [
        ["run", "true"],
        ["status"],
        ["stop", "mnist"],
        ["cluster", "start", "--nodes", "localhost:1"],
        ["cluster", "stop"],
        ["submit", "true"],
        ["queue"],
        ["dashboard"],
    ],
)
def test_no_command_uses_it(tmp_path, monkeypatch, capsys, foreign, words):
    home = tmp_path / "edl-4711"
    (home / "cluster").mkdir(parents=True)
    (home / "cluster" / "secret").write_text("known" * 8)
    monkeypatch.setenv("EDL_HOME", str(home))
    foreign(home)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{home} belongs to another user (uid " in said and "set EDL_HOME to a folder of your own" in said


@pytest.mark.parametrize("inside", ["cluster", "cluster/secret"])
def test_a_cluster_believes_nothing_of_another_users_in_its_own_home(tmp_path, foreign, inside):
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "secret").write_bytes(secrets.token_hex(32).encode())
    foreign(tmp_path / inside)
    for use in (ClusterHome(tmp_path).make, ClusterHome(tmp_path).config):
        with pytest.raises(ConfigError, match="belongs to another user"):
            use()


def test_a_home_that_several_machines_share_is_the_volumes_owners(tmp_path, foreign):
    foreign(tmp_path)
    ClusterHome(tmp_path, own=str(tmp_path / "own")).check()


def test_this_users_home_and_one_that_is_not_there_yet_are_fine(tmp_path):
    check_home(tmp_path, tmp_path / "jobs")
    check_home(tmp_path / "later")
