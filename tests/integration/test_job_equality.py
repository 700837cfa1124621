"""Two workers end with the same weights, which are those of one worker trained on the same global batches."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JOBS = Path(__file__).parent / "jobs"


def final_weights(folder: Path, rank: int) -> np.ndarray:
    with np.load(folder / f"weights{rank}.npz") as saved:
        return np.concatenate([saved[name].ravel() for name in saved.files])


@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("torch_loop", {"EDL_RING": "horovod"}),
        ("torch_loop", {"EDL_RING": "torch"}),
        ("tf_tape", {"EDL_TEST_TRACED": "1"}),
        ("keras_fit", {}),
    ],
    ids=["horovod", "torch", "tf.function", "keras fit"],
)
def test_two_workers_train_as_one_would(edl, tmp_path, script, environ):
    program = edl.warm.command(JOBS / f"{script}.py")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    job = edl.start("run", "-np", "2", "--job", "pair", *program, "--out", str(tmp_path / "pair"), **quiet, **environ)
    out, err = job.communicate(timeout=patient(200))
    assert job.returncode == 0, out + err
    alone = subprocess.run(
        [*program, "--replay", str(tmp_path / "pair"), "--out", str(tmp_path / "alone")],
        env={**os.environ, **quiet},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert alone.returncode == 0, alone.stderr
    first, second = final_weights(tmp_path / "pair", 0), final_weights(tmp_path / "pair", 1)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, final_weights(tmp_path / "alone", 0), rtol=1e-5, atol=1e-7)
    trained = sorted(sample for step in json.loads((tmp_path / "alone" / "steps0.json").read_text()) for sample in step)
    assert trained == sorted(2 * list(range(203)))
