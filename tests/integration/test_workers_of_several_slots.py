"""Workers of two processes on a real Slurm and a real Ray with made-up GPUs: each worker has two of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_ray import real_ray
from real_slurm import real_slurm
from test_cluster import LiveCluster, wait
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]
TOLD = "echo limb $EDL_LIMB of $EDL_PROCESSES on $CUDA_VISIBLE_DEVICES; sleep 20"


def expect_two_each(cluster: LiveCluster) -> None:
    cluster("submit", "--name", "pairs", "-np", "2", "--processes", "2", "sh", "-c", TOLD)

    def told() -> list[str]:
        logs = cluster.places.job_logs("pairs").glob("pairs-*.log")
        lines = [line for log in logs for line in log.read_text().splitlines()]
        return lines if len(lines) == 4 else []

    found = wait(told, "both workers run at once", 240)
    assert sorted(found) == [f"limb {limb} of 2 on {two}" for limb in (0, 1) for two in ("0,1", "2,3")]
    cluster("wait", "pairs", "--timeout", "240")
    assert cluster.job("pairs")["state"] == "finished"


def test_an_actor_of_ray_has_the_gpus_of_its_processes(tmp_path: Path, warm: WarmPython) -> None:
    with real_ray(["n1"], cpus=4, gpus=4) as ray:
        cluster = LiveCluster(tmp_path / "home", warm)
        told: dict[str, Any] = dict(ray.told)
        cluster("cluster", "start", "--engine", "ray", "--nodes", "n1:4", "--policy", "fifo", **told)
        try:
            expect_two_each(cluster)
        finally:
            cluster("cluster", "stop", "--now")


def test_a_job_of_slurm_has_the_gpus_of_its_processes(tmp_path: Path, warm: WarmPython) -> None:
    with real_slurm(tmp_path / "slurm", ["n1"], cpus=4, gpus=4) as slurm:
        slurm.wait_up()
        cluster = LiveCluster(tmp_path / "home", warm)
        told: dict[str, Any] = {"SLURM_CONF": slurm.environ["SLURM_CONF"]}
        cluster("cluster", "start", "--engine", "slurm", "--nodes", "n1:4", "--policy", "fifo", **told)
        try:
            expect_two_each(cluster)
        finally:
            cluster("cluster", "stop", "--now")
