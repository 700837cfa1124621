"""A cluster whose workers are jobs of a real Slurm of two nodes: one is killed, one is taken by who is more urgent."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_slurm import RealSlurm, real_slurm
from test_cluster import LiveCluster, wait
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
# As in docs/cluster.md.
START = "edl cluster start --engine slurm --nodes n1:2,n2:2"
SUBMIT = (
    "edl submit --name digits -np 2 --min-np 1 --max-np 2 --spread python examples/torch_digits.py "
    "--epochs 20 --step-time 0.05"
)
STOP = "edl cluster stop"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    with real_slurm(tmp_path_factory.mktemp("slurm"), ["n1", "n2"], cpus=2, grace_s=30) as slurm:
        slurm.wait_up()
        yield slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, slurm: RealSlurm, warm: WarmPython) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster") / "home", warm)
    typed(cluster, f"{START} --policy fifo --session-timeout 3", SLURM_CONF=slurm.environ["SLURM_CONF"])
    try:
        yield cluster
    finally:
        cluster("cluster", "stop", "--now")
        assert cluster.places.living() == {}
        assert slurm("squeue", "-h") == ""


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


def test_the_lines_are_those_of_the_documentation() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text()
    for line in (START, SUBMIT, STOP):
        assert f"\n{line}" in text, line


def test_a_job_goes_on_when_a_node_is_killed_and_grows_onto_it_when_it_is_back(
    cluster: LiveCluster, slurm: RealSlurm
) -> None:
    audit = submit(cluster, "digits")
    assert sorted(holders(cluster, "digits")) == ["n1", "n2"]
    names = slurm("squeue", "-h", "-o", "%T %j %N").splitlines()
    assert sorted(line.split()[2] for line in names) == ["n1", "n2"]
    lost = holders(cluster, "digits")["n2"]
    cluster.kill("agent-n1")
    slurm.kill_node("n2")
    wait(lambda: told(cluster, "digits", f"{lost} on n2: its machine was taken away Slurm has lost its node"), "seen")
    wait(lambda: nodes(cluster) == {"n1": 2, "n2": 0}, "a node that is lost has nothing to give")
    wait(lambda: lost not in holders(cluster, "digits").values(), "another worker is in its place")
    slurm.begin_node("n2")
    wait(lambda: nodes(cluster) == {"n1": 2, "n2": 2}, "it is back")
    cluster("wait", "digits", "--timeout", "180")
    job = cluster.job("digits")
    assert (job["state"], job["lives"]) == ("finished", 1), job
    cluster.expect_exactly_once(audit, epochs=20)


def test_a_worker_leaves_when_slurm_wants_its_node_for_others(cluster: LiveCluster, slurm: RealSlurm) -> None:
    audit = submit(cluster, "tame")
    taken = holders(cluster, "tame")["n1"]
    line = ["--partition=urgent", "--nodelist=n1", "--ntasks=1", "--cpus-per-task=2", "--output=/dev/null"]
    urgent = slurm("sbatch", "--parsable", *line, "--wrap", "sleep 5").strip()
    wait(lambda: slurm.shown(urgent, "JobState") in {"RUNNING", "COMPLETED"}, "the urgent job has the node")
    wait(lambda: told(cluster, "tame", f"{taken} on n1: its machine was taken away Slurm"), "its cause is known")
    cluster("wait", "tame", "--timeout", "180")
    job = cluster.job("tame")
    assert (job["state"], job["lives"], job["used_s"].get("lost", 0.0)) == ("finished", 1, 0.0), job
    [end] = cluster.places.folder.glob(f"nodes/n1/workers/{taken}/exit.json")
    left = json.loads(end.read_text())
    assert (left["code"], left["terminated"]) == (0, True)  # and was not killed
    cluster.expect_exactly_once(audit, epochs=20)
