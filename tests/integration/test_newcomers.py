"""A newcomer's unchanged script is warm before anyone waits for it, in each way of training with TensorFlow.

PyTorch's is in `test_scaling`.
"""

from __future__ import annotations

import os
import signal

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize("way", ["eager", "function", "fit", "graph"])
def test_a_newcomer_joins_warm_and_leaves_nothing_of_its_rehearsal(edl, tmp_path, way):
    epochs = 60 if way == "fit" else None
    script = ["tensorflow_elastic.py", "--way", way, "--step-time", "0.3" if way == "fit" else "0.1"]
    job = Job(edl, tmp_path / "out", workers=2, epochs=epochs, script=script, CUDA_VISIBLE_DEVICES="")
    job.wait_size(2)
    newcomer = job.join(CUDA_VISIBLE_DEVICES="")
    leaver = next(worker for worker in job.wait_size(3)["workers"] if worker["rank"] == 1)
    job.wait_steps(2)
    os.kill(leaver["pid"], signal.SIGTERM)
    job.wait_size(2)
    events = job.finish()
    assert newcomer.wait(30) == 0

    switches = [event for event in events if event["kind"] == "scaled"]
    assert [(switch["from"], switch["to"], switch["forced"]) for switch in switches] == [(2, 3, False), (3, 2, False)]
    assert "batch_voided" not in {event["kind"] for event in events}
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()
    job.expect_batches_as_handed_out()
    (joined,) = [result for result in job.results() if result["newcomer"]]
    assert joined["batches"] == joined["step"] - 1  # what the rehearsal had counted is gone
    assert joined.get("averaged", 0) == 0  # and so is what it left in Keras's metrics
    if way in {"function", "fit"}:  # all that is traced was, before anybody waited
        assert joined["traces"]
        assert all(joined["traces"])
