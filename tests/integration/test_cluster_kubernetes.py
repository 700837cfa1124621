"""A cluster whose workers are Pods of a made-up Kubernetes of two nodes, kept by two machines, of which one dies."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import TEMPLATE, FakeKubernetes, fake_kubernetes
from test_cluster import LiveCluster, wait
from warm_python import WarmPython

from edl.scheduler.cluster_home import OWN, ClusterHome

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


class ClusterMachine(LiveCluster):
    """One of several that share EDL_HOME, as the Pods of the Deployment do."""

    def __init__(self, home: Path, own: Path, warm: WarmPython) -> None:
        super().__init__(home, warm)
        self.own = own
        self.places = ClusterHome(home, str(own))
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, *words: str, code: int = 0, **environ: str) -> str:
        return super().__call__(*words, code=code, **{OWN: str(self.own), **environ})

    def begin(self, *flags: str) -> None:
        self.own.mkdir()
        others = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        environ = {**others, "EDL_HOME": str(self.home), OWN: str(self.own), "PYTHONPATH": str(ROOT)}
        line = [sys.executable, "-c", "import sys; from edl.cli import main; sys.exit(main())"]
        with (self.own / "out").open("wb") as out:
            self.process = subprocess.Popen(
                [*line, "cluster", "start", "--foreground", *flags], env=environ, stdout=out, stderr=out
            )

    def said(self) -> str:
        return (self.own / "out").read_text()

    def die(self) -> None:
        """As if its power was cut."""
        assert self.process is not None
        self.places.ending.touch()  # so that none of those that are left for a moment starts another
        for pid in [self.process.pid, *self.places.living().values()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait(lambda: not self.places.living(), "all of it is gone")


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with fake_kubernetes(tmp_path / "account") as pods:
        pods.add_node("n1")
        pods.add_node("n2")
        yield pods


@pytest.fixture
def machines(tmp_path: Path, warm: WarmPython, pods: FakeKubernetes) -> Iterator[tuple[ClusterMachine, ClusterMachine]]:
    place, template = Path(warm.coordinator()), tmp_path / "worker.yaml"
    wait(place.exists, "a coordinator")
    template.write_text(json.dumps(TEMPLATE))
    flags = ["--engine", "kubernetes", "--kubernetes", pods.url, "--kubernetes-account", str(pods.folder)]
    flags += ["--pod-template", str(template), "--nodes", "n1:1,n2:1", "--schedulers", "1", "--policy", "fifo"]
    flags += ["--coordinator", f"{place.read_text()}/{tmp_path.name}", "--session-timeout", "3"]
    first, second = (ClusterMachine(tmp_path / "home", tmp_path / name, warm) for name in ("first", "second"))
    try:
        for one in (first, second):
            one.begin(*flags)
        for one in (first, second):
            wait(functools.partial(_runs, one), "it runs")
        yield first, second
    finally:
        for one in (first, second):
            one.die()


def _runs(one: ClusterMachine) -> bool:
    return "the cluster runs" in one.said()


def told(cluster: LiveCluster, name: str, words: str) -> Any:
    return [event for event in cluster.job(name)["events"] if words in event["words"]]


# soak: what becomes of a Pod: test_kubernetes_engine.py; of a queue: tests/simulation/test_cluster_queue.py
@pytest.mark.soak
def test_a_job_goes_on_when_a_pod_is_preempted_and_one_of_two_machines_dies(
    machines: tuple[ClusterMachine, ClusterMachine], pods: FakeKubernetes
) -> None:
    first, second = machines
    audit = first.submit("digits", "--min-np", "1", "-np", "2", "--spread", epochs=12)
    job = first.until("digits", "running", step=2, np=2)
    assert pods.there() == sorted(worker["id"] for worker in job["workers"])
    [taken] = [worker["id"] for worker in job["workers"] if worker["node"] == "n1"]
    pods.disrupt(taken, "PreemptionByScheduler")
    wait(
        lambda: told(first, "digits", f"{taken} on n1: its machine was taken away Kubernetes has preempted it"), "seen"
    )
    first.die()
    pods.cut()
    second("wait", "digits", "--timeout", "120")
    job = second.job("digits")
    assert (job["state"], job["lives"]) == ("finished", 1), job
    second.expect_exactly_once(audit, epochs=12)
    wait(lambda: pods.there() == [], "who was heard of is removed")
    assert pods.count("POST") == 3  # no Pod was made twice
    second("cluster", "stop")
    assert second.process is not None and second.process.poll() is None  # else Kubernetes would start it again
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(30) == 0
    assert second.places.living() == {}
