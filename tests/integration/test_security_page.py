"""docs/security.md on folders, files and ports, held against a cluster and a job that have run."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from pathlib import Path

import pytest
from seen_server import listening

from edl.scheduler.cluster_home import ClusterHome
from tests.architecture.test_docs import rows, section

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def rules():
    """By name, its mode."""
    for names, _, mode, _ in rows(section(PAGE, "Folders and files")):
        yield from ((name.rstrip("/"), int(mode, 8)) for name in re.findall(r"`([^`]+)`", names))


@pytest.mark.slow
def test_whatever_lies_in_a_home_is_named_there_and_is_this_users_alone(edl):
    edl("cluster", "start", "--nodes", "localhost:1", "--policy", "fifo", "--http", "0")
    edl("submit", "--name", "mine", "true")
    edl("wait", "mine")
    home = ClusterHome(edl.home)
    living = home.living()
    ears = {name: listening(pid) for name, pid in living.items()}
    assert [name for name, found in ears.items() if found] == ["http"], "schedulers and agents listen nowhere"
    assert {address for found in ears.values() for address, _ in found} == {"127.0.0.1"}
    edl("run", "--job", "other", "true")
    edl("run", "--job", "third", "true", EDL_LOCAL_COORDINATOR="embedded", EDL_TEST_COORDINATOR="")

    known, seen = dict(rules()), set()
    for path in sorted([edl.home, *edl.home.rglob("*")]):
        name, status = str(path.relative_to(edl.home)), path.lstat()
        assert status.st_uid == os.geteuid(), f"{name} is another user's"
        found = [rule for rule in known if fnmatch.fnmatch(name, rule) and name.count("/") == rule.count("/")]
        seen.update(found)
        for rule in found:
            assert stat.S_IMODE(status.st_mode) == known[rule], f"{name} has mode {status.st_mode & 0o777:o}"
        if not found:  # then it lies in a private folder that is named
            assert any(name.startswith(f"{place}/") for place in known) or fnmatch.fnmatch(name, "jobs/*/*"), name
    told = {"start.json", "environs/*", "users.json", "users.lock"}  # of what waits, or begins
    assert {rule for rule in known if not rule.endswith(tuple(told)) and "etcd" not in rule} - {"."} <= seen
    stopped = edl("cluster", "stop", "--now")
    assert stopped.returncode == 0, stopped.stderr
    edl.wait(lambda: not edl.processes(), "all that belongs to the cluster has ended")
