"""A peer is killed while others are inside a `tf.function` or a session: a void mini-batch, and they train on."""

from __future__ import annotations

import os
import signal

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize("way", ["graph"])
def test_a_killed_peer_costs_a_graph_one_mini_batch(edl, tmp_path, way):
    job = Job(edl, tmp_path / "out", workers=3, script=("tensorflow_elastic.py", "--way", way))
    status = job.wait_size(3)
    job.wait_steps(10)
    victim = next(worker for worker in status["workers"] if worker["id"] != status["leader"])
    os.kill(victim["pid"], signal.SIGKILL)
    job.wait_size(2)
    job.wait_steps(10)
    events = job.finish()
    voided = [event["worker"] for event in events if event["kind"] == "batch_voided"]
    assert len(voided) == len(set(voided)) == 2, "each survivor one, and nobody else"
    assert [event["worker"] for event in events if event["kind"] == "worker_lost"] == [victim["id"]]
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()
