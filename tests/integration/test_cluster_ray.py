"""A cluster whose workers are actors of a real Ray of two nodes: one is killed, and comes back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_ray import RealRay, leave_ray, real_ray
from test_cluster import LiveCluster, wait
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
# As in docs/cluster.md.
START = "edl cluster start --engine ray --nodes n1:2,n2:2"
SUBMIT = (
    "edl submit --name digits -np 2 --min-np 1 --max-np 2 --spread python examples/torch_digits.py "
    "--epochs 20 --step-time 0.05"
)
STOP = "edl cluster stop"
NODES = {
    "n1": "ray start --head --node-name=n1 --num-cpus=2",
    "n2": "ray start --address=127.0.0.1:6379 --node-name=n2 --num-cpus=2",
}


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    with real_ray(["n1", "n2"], cpus=2) as ray:
        yield ray


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ray: RealRay, warm: WarmPython) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster") / "home", warm)
    typed(cluster, f"{START} --policy fifo --session-timeout 3", **ray.told)
    try:
        yield cluster
    finally:
        typed(cluster, f"{STOP} --now", **ray.told)
        assert cluster.places.living() == {}
        assert reserved() == []
        leave_ray()


def reserved() -> list[str]:
    """Names of groups of slots, as this process, which has told the cluster to stop, sees them."""
    from ray.util import placement_group_table

    return [one["name"] for one in placement_group_table().values() if one["state"] != "REMOVED"]


def typed(cluster: LiveCluster, line: str, **environ: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return cluster(*shlex.split(line)[1:], **environ)


def submit(cluster: LiveCluster, name: str) -> Path:
    audit = cluster.home / "audits" / name
    typed(cluster, SUBMIT.replace("--name digits", f"--name {name}"), EDL_AUDIT=str(audit))
    cluster.until(name, "running", step=2)
    return audit


def holders(cluster: LiveCluster, name: str) -> dict[str, str]:
    """By node: the worker there."""
    return {worker["node"]: worker["id"] for worker in cluster.job(name)["workers"]}


def nodes(cluster: LiveCluster) -> dict[str, int]:
    """Devices that each has to give."""
    found = json.loads(cluster("cluster", "status", "--json"))["nodes"]
    return {node["name"]: len(node["devices"]) for node in found}


def told(cluster: LiveCluster, name: str, words: str) -> Any:
    events = cluster.job(name)["events"]
    return [event for event in events if words in event["words"]]


def test_the_lines_are_those_of_the_documentation(ray: RealRay) -> None:
    """Those that start Ray have more flags here: ports and a folder of their own, and `--block`."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    for line in (*NODES.values(), START, SUBMIT, STOP):
        assert f"\n{line}\n" in text, line
    for name, line in NODES.items():
        flags = shlex.split(line.replace("127.0.0.1:6379", ray.address))[2:]
        assert set(flags) <= set(ray.flags[name]), line


def test_a_job_goes_on_when_a_node_is_killed_and_grows_onto_it_when_it_is_back(
    cluster: LiveCluster, ray: RealRay
) -> None:
    audit = submit(cluster, "digits")
    assert sorted(holders(cluster, "digits")) == ["n1", "n2"]
    lost = holders(cluster, "digits")["n2"]
    cluster.kill("agent-n1")
    ray.kill_node("n2")
    wait(lambda: told(cluster, "digits", f"{lost} on n2: its machine was taken away Ray has lost its node"), "seen")
    wait(lambda: nodes(cluster) == {"n1": 2, "n2": 0}, "a node that is lost has nothing to give")
    wait(lambda: lost not in holders(cluster, "digits").values(), "another worker is in its place")
    ray.begin_node("n2")
    wait(lambda: nodes(cluster) == {"n1": 2, "n2": 2}, "it is back")
    cluster("wait", "digits", "--timeout", "180")
    job = cluster.job("digits")
    assert (job["state"], job["lives"]) == ("finished", 1), job
    cluster.expect_exactly_once(audit, epochs=20)
