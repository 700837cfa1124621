"""What `edl cluster status` says of nodes."""

from __future__ import annotations

import argparse
import json
import time

import msgspec
import pytest
from seen_cluster import cluster_status

from edl.cli import cluster


class Reached:
    def __init__(self, until: float) -> None:
        self.until = until

    def status(self):
        found = cluster_status(nodes=("n", "m"))
        nodes = (msgspec.structs.replace(found.nodes[0], left_out_until=self.until), found.nodes[1])
        return msgspec.structs.replace(found, nodes=nodes)


def test_a_node_that_is_left_out_is_shown_until_when(monkeypatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    until = time.time() + 60
    monkeypatch.setattr(cluster, "reached", lambda _: Reached(until))
    cluster.status(argparse.Namespace(json=False))
    head, first, second = (line.split() for line in capsysbinary.readouterr().out.decode().splitlines()[3:6])
    assert head == ["node", "devices", "held", "agent", "left", "out", "until", "workers"]
    assert first == ["n", "4", "0", "there", time.strftime("%H:%M:%S", time.localtime(until))]
    assert second == ["m", "4", "0", "there", "-"]
    cluster.status(argparse.Namespace(json=True))
    nodes = json.loads(capsysbinary.readouterr().out)["nodes"]
    assert [node["left_out_until"] for node in nodes] == [until, None]
