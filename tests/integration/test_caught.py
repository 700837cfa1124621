"""Scripts that catch an exception before their update: no gradients meet those of another mini-batch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pace import patient
from test_job_equality import JOBS, final_weights

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SKIPPED = "the script has ended it without an update, which others make, as where it catches an exception"


def run(edl: Any, folder: Path, script: str, **environ: str) -> str:
    """Train in two workers; what they have said. Weights are compared after each step."""
    program = [*edl.warm.command(JOBS / f"{script}.py"), "--out", str(folder / "pair")]
    flags = ("--max-restarts", "0", "--check-weights", "1", "--step-timeout", "8", "--session-timeout", "6")
    job = edl.start("run", "-np", "2", "--job", "pair", *flags, *program, **environ)
    out, err = job.communicate(timeout=patient(150))
    assert job.returncode == 0, out + err
    assert not [event for event in edl.events("pair") if event["kind"] == "diverged"]
    return str(out + err)


def check_as_one_would(edl: Any, folder: Path, script: str, **environ: str) -> None:
    program = [*edl.warm.command(JOBS / f"{script}.py"), "--replay", str(folder / "pair")]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
    subprocess.run([*program, "--out", str(folder / "alone")], env=environ, check=True, timeout=patient(120))
    first, second = final_weights(folder / "pair", 0), final_weights(folder / "pair", 1)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, final_weights(folder / "alone", 0), rtol=1e-4, atol=1e-6)
    trained = sorted(sample for step in json.loads((folder / "alone" / "steps0.json").read_text()) for sample in step)
    assert trained == sorted(2 * list(range(203)))


def voided(edl: Any) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for event in edl.events("pair"):
        if event["kind"] == "batch_voided":
            found.setdefault(event["voided_step"], set()).add(str(event))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("torch_caught", {"EDL_TEST_WAY": "before", "EDL_RING": "horovod"}),
        ("torch_caught", {"EDL_TEST_WAY": "before", "EDL_RING": "torch"}),
        ("torch_caught", {"EDL_TEST_WAY": "within", "EDL_RING": "horovod"}),
        ("torch_caught", {"EDL_TEST_WAY": "within", "EDL_RING": "torch"}),
        ("torch_caught", {"EDL_TEST_WAY": "after", "EDL_RING": "torch"}),
        pytest.param("tf_caught", {"TF_CPP_MIN_LOG_LEVEL": "3"}, marks=pytest.mark.soak),  # traced, it is the same
        ("tf_caught", {"TF_CPP_MIN_LOG_LEVEL": "3", "EDL_TEST_TRACED": "1"}),
    ],
    ids=["horovod", "torch", "horovod, within", "torch, within", "torch, after", "tensorflow", "tf.function"],
)
def test_a_mini_batch_that_one_worker_alone_leaves_out_is_void_on_all_and_comes_again(
    edl: Any, tmp_path: Path, script: str, environ: dict[str, str]
) -> None:
    said = run(edl, tmp_path, script, **environ)
    check_as_one_would(edl, tmp_path, script, **environ)
    # After backward() the others have made the update, and are in the next mini-batch.
    assert set(voided(edl)) == {"after": {10, 11}, "within": {4}}.get(environ.get("EDL_TEST_WAY", ""), {10})
    assert SKIPPED in said


@pytest.mark.parametrize(("way", "ring"), [("all", "torch"), ("fourth", "horovod")])
def test_what_all_leave_out_is_none(edl: Any, tmp_path: Path, way: str, ring: str) -> None:
    run(edl, tmp_path, "torch_caught", EDL_TEST_WAY=way, EDL_RING=ring)
    check_as_one_would(edl, tmp_path, "torch_caught", EDL_TEST_WAY=way)
    assert voided(edl) == {}


@pytest.mark.slow
def test_a_worker_that_leaves_it_out_again_ends_by_one_line_and_the_others_train_on(edl: Any, tmp_path: Path) -> None:
    said = run(edl, tmp_path, "torch_caught", EDL_TEST_WAY="again", EDL_RING="torch", EDL_MIN_NP="1")
    assert f"edl.errors.UsageError: step 10 is void again: {SKIPPED}. Skip a mini-batch on all workers" in said
    (lost,) = [event for event in edl.events("pair") if event["kind"] == "worker_lost"]
    assert "step 10 is void again" in lost["reason"]
