"""Pipelines that read ahead of training lose nothing and repeat nothing, while workers come, go and die."""

from __future__ import annotations

import os
import signal

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_loader_of_pytorch(edl, tmp_path, loaders):
    script = ["torch_elastic.py", "--loaders", str(loaders)]
    job = Job(edl, tmp_path / "out", workers=2, script=script)
    job.wait_size(2)
    newcomers = [job.join(), job.join()]
    status = job.wait_size(4)
    ranks = {worker["rank"]: worker["pid"] for worker in status["workers"]}
    job.wait_steps(3)
    os.kill(ranks[1], signal.SIGKILL)
    job.wait_size(3)
    os.kill(ranks[0], signal.SIGTERM)
    job.wait_size(2)
    job.wait_steps(3)
    job.finish()
    assert [newcomer.wait(60) for newcomer in newcomers] == [0, 0]
    job.expect_equal_models()
    job.expect_exactly_once(unwritten=4)
