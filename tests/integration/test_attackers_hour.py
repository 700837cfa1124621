"""The short form of tests/soaks/attackers_hour.py: another user of the machine against the first moments of servers."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="plays another user"),
]

ROOT = Path(__file__).parents[2]


def hour(edl, starts, kinds):
    soak = [sys.executable, "-m", "tests.soaks.attackers_hour", "--json", "--starts", str(starts), "--kinds", kinds]
    done = subprocess.run(soak, env=edl.environ, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip("this container has no network namespaces")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["starts"] >= starts and not result["wrong"]
    assert all(result["tried"][act] for act in ("ask", "press", "surf", "rush", "babble", "enter")), result["tried"]


@pytest.mark.slow
def test_a_few_starts_of_local_servers(edl):
    hour(edl, 5, "zookeeper,etcd,etcd-port,embedded")


@pytest.mark.soak  # the same stranger, against local servers: above
def test_starts_of_all_kinds(edl):
    hour(edl, 40, "zookeeper,zookeeper-port,etcd,etcd-port,cluster,cluster-etcd,embedded,run,run-embedded,horovodrun")


def test_the_stranger_knows_each_place_where_edl_listens_and_spares_horovods():
    spec = importlib.util.spec_from_file_location("stranger", ROOT / "tests" / "soaks" / "stranger.py")
    assert spec is not None and spec.loader is not None
    stranger = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stranger)
    with socket.socket(socket.AF_INET6) as mapped, socket.create_server(("127.0.0.1", 0)) as plain:
        mapped.bind(("::ffff:127.0.0.1", 0))  # as gRPC does
        mapped.listen()
        with socket.create_server(("", 0)) as everywhere:
            ports = {port for _, port in stranger.ears()}
            assert {mapped.getsockname()[1], plain.getsockname()[1]} <= ports
            assert everywhere.getsockname()[1] not in ports
