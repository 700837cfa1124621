"""Pipelines that read ahead of training lose nothing and repeat nothing, while workers come, go and die."""

from __future__ import annotations

import json
import os
import signal

import pytest
from elastic_job import SAMPLES, Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def hurt(job: Job, **environ: str) -> None:
    """Two come, one is killed, one leaves."""
    job.wait_size(2)
    newcomers = [job.join(**environ), job.join(**environ)]
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


@pytest.mark.soak  # its processes are in test_checkpoints.py too, workers that come, die and leave in test_paths.py
def test_a_loader_of_pytorch(edl, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps({"sample": number}) + "\n" for number in range(SAMPLES)))
    job = Job(edl, tmp_path / "out", workers=2, script=["torch_elastic.py", "--loaders", "2", "--files", str(path)])
    hurt(job)
    job.expect_equal_models()
    job.expect_exactly_once()
    job.expect_batches_as_handed_out()


@pytest.mark.slow
def test_a_dataset_of_tensorflow(edl, tmp_path):
    script = ["tensorflow_elastic.py", "--way", "dataset", "--step-time", "0.1"]
    job = Job(edl, tmp_path / "out", workers=2, script=script, CUDA_VISIBLE_DEVICES="")
    hurt(job, CUDA_VISIBLE_DEVICES="")
    job.expect_equal_models()
    job.expect_exactly_once()
