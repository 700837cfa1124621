"""What Ray says, understood, and what follows from it. Ray itself is played."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl.errors import ConfigError
from edl.scheduler import engine_registry, ray_cluster
from edl.scheduler.cluster_home import NodeGiven
from edl.scheduler.ray_cluster import RayCluster, RayError, RayFound, RayNode, checked_address, nodes_of, times
from edl.scheduler.ray_engine import known

N1 = RayNode("n1", "a1", "here", 4, 0)


def told(name: str, *, alive: bool = True, **has: float) -> dict[str, Any]:
    return {
        "NodeName": name,
        "NodeID": f"id-{name}",
        "NodeManagerHostname": "h",
        "Alive": alive,
        "Resources": has,
    }


def test_nodes_are_those_alive_with_gpus_or_else_cores() -> None:
    found = nodes_of([told("n1", CPU=4.0), told("n2", CPU=8.0, GPU=2.0), told("n3", alive=False), told("n4", memory=1)])
    assert {node.name: node.devices for node in found} == {"n1": 4, "n2": 2, "n4": 0}


@pytest.mark.parametrize(
    ("cpus", "gpus", "slots", "share"),
    [
        (8, 0, 2, {"CPU": 4.0}),
        (8, 0, 3, {"CPU": 2.0}),
        (2, 4, 4, {"CPU": 0.5, "GPU": 1.0}),  # fewer cores than slots
        (0, 2, 2, {"GPU": 1.0}),
        (2, 0, 3, {"CPU": 0.6666}),  # three of them fit into the node
    ],
)
def test_a_slot_is_a_share_of_the_node_and_one_gpu(cpus: int, gpus: int, slots: int, share: dict[str, float]) -> None:
    assert RayNode("n", "i", "h", cpus, gpus).share(slots) == share


def test_a_worker_of_two_processes_has_twice_a_slots_share() -> None:
    share = RayNode("n", "i", "h", 2, 4).share(4)
    assert (times(share, 1), times(share, 2), times(share, 4)) == (
        share,
        {"CPU": 1.0, "GPU": 2.0},
        {"CPU": 2, "GPU": 4},
    )


def test_of_two_nodes_of_one_name_the_one_that_was_there_stays() -> None:
    again = msgspec.structs.replace(N1, id="a2")
    assert known([again, N1], "n1", N1) == N1  # Ray has not lost it yet
    assert known([again], "n1", N1) == again
    assert known([N1], "n2", None) is None


@pytest.mark.parametrize("address", ["ray://head:10001", "local", "head", "head:x"])
def test_an_address_that_is_none_is_said_to_be(address: str) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT, as `ray start --head` says it"):
        checked_address(address)


def test_an_address_may_be_left_to_ray() -> None:
    assert [checked_address(given) for given in ("", "auto", "head:6379", "[::1]:6379")] == [
        "auto",
        "auto",
        "head:6379",
        "[::1]:6379",
    ]


def connect(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Ray itself is not asked."""
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: pytest.fail("Ray would try for minutes"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    RayCluster("", address).connect()


def test_where_nothing_answers_that_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ear:
        address = f"127.0.0.1:{ear.getsockname()[1]}"
    with pytest.raises(RayError, match=f"no Ray answers at {address}: Connection refused"):
        connect(monkeypatch, address)


def test_something_else_than_ray_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as ear, pytest.raises(RayError, match="something else"):
        connect(monkeypatch, f"127.0.0.1:{ear.getsockname()[1]}")


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^--engine ray needs Ray: pip install 'horovod-edl\[ray\]'$"):
        engine_registry.nodes_of("ray", None, own_coordinator=True)


def play_look(monkeypatch: pytest.MonkeyPatch, *nodes: RayNode) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr(ray_cluster, "look", lambda: RayFound("head:6379", nodes))


def test_all_nodes_with_devices_are_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    play_look(monkeypatch, N1, RayNode("head", "b", "here", 0, 0), RayNode("10.0.0.9", "c", "far", 8, 2))
    chosen = engine_registry.nodes_of("ray", None, own_coordinator=False)
    assert chosen == ((NodeGiven("n1", (0, 1, 2, 3)), NodeGiven("10.0.0.9", (0, 1))), "head:6379")


@pytest.mark.parametrize(
    ("nodes", "given", "said"),
    [
        ((N1,), "n2:1", r"Ray has no node n2: `ray status -v` shows those that it has \(n1\)"),
        ((N1,), "n1:5", "node n1 has 4 devices, says Ray"),
        ((N1, N1), None, "several nodes are called n1: give each a --node-name"),
        ((RayNode("head", "b", "here", 0, 0),), None, "no node of Ray's takes jobs"),
        ((RayNode("../x", "b", "here", 4, 0),), None, r"node '\.\./x': a name has letters, digits, dots and dashes"),
        ((RayNode("n1", "b", "far", 4, 0),), "n1:1", "n1 is not this machine, and cannot reach the ZooKeeper"),
    ],
)
def test_nodes_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[RayNode, ...], given: str | None, said: str
) -> None:
    play_look(monkeypatch, *nodes)
    with pytest.raises(ConfigError, match=said):
        engine_registry.nodes_of("ray", given, own_coordinator=True)


def play_client(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """What Ray's client says, asked by another process."""
    run = subprocess.run
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda _, **how: run([sys.executable, "-S", "-c", script], **how))


def test_what_ray_says_of_itself_is_taken_from_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = msgspec.json.encode(RayFound("h:1", (N1,))).decode()
    play_client(monkeypatch, f"print('Connecting to Ray'); print({found!r})")
    assert ray_cluster.look() == RayFound("h:1", (N1,))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit('noise\\nno Ray answers at h:1')", "^no Ray answers at h:1$"),
        ("raise SystemExit(3)", "Ray's client ended with 3"),
        ("import time; time.sleep(60)", "no Ray answers within 0.3 s: `ray start --head` starts one"),
    ],
)
def test_a_ray_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    play_client(monkeypatch, script)
    monkeypatch.setattr(ray_cluster, "LOOK_S", 0.3 if "sleep" in script else 30)
    with pytest.raises(RayError, match=said):
        ray_cluster.look()
