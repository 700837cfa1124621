"""Lightning's Trainer on edl: through growth, a kill, and a preemption; equal decisions, and no sample lost."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from elastic_job import Job
from pace import patient
from test_paths import check
from whole_story import tell

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SCRIPT = "lightning_elastic.py"


@pytest.mark.soak
def test_a_trainer_grows_loses_a_worker_and_shrinks(edl: Any, tmp_path: Any) -> None:
    script = [SCRIPT, "--way", "trainer", "--accumulate", "2"]
    job = Job(edl, tmp_path / "out", 2, script=script, EDL_MAX_RESTARTS="3", EDL_MAX_NP="3")
    check(edl, job)
    results = job.results()
    epochs, validations, *_ = results[0]["state"]
    assert epochs == list(range(job.epochs or 0)) and validations == len(epochs)
    assert {result["global_step"] for result in results} == {result["steps"] for result in results}
    assert all(result["saved"] for result in results)


@pytest.mark.soak
@pytest.mark.parametrize("more", [[], ["--turns"]], ids=["together", "in turns"])
def test_a_module_steps_two_optimizers(edl: Any, tmp_path: Any, more: list[str]) -> None:
    script = [SCRIPT, "--way", "manual", "--manual", *more]
    job = Job(edl, tmp_path / "out", 2, script=script, EDL_MAX_RESTARTS="3", EDL_MAX_NP="3")
    check(edl, job)
    assert {result["global_step"] for result in job.results()} == {2 * result["steps"] for result in job.results()}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("given", "epochs", "steps", "validations"),
    [
        (["max_steps=20"], [0, 1], 20, 1),
        (["limit_train_batches=4", "accumulate_grad_batches=2"], [0, 1, 2], 6, 3),
        (["val_check_interval=0.5"], [0, 1, 2], 39, 6),
        (["check_val_every_n_epoch=2"], [0, 1, 2], 39, 1),
    ],
    ids=["max_steps", "limit", "twice", "seldom"],
)
def test_what_a_trainer_is_told_holds(
    edl: Any, tmp_path: Any, given: list[str], epochs: list[int], steps: int, validations: int
) -> None:
    more = [word for one in given for word in ("--set", one)]
    script = [SCRIPT, "--way", "told", *more]
    job = Job(edl, tmp_path / "out", 2, epochs=3, script=script)
    out, err = job.launcher.communicate(timeout=patient(120))
    assert job.launcher.returncode == 0, out + err
    first, second = job.results()
    assert first["state"] == second["state"]
    assert (first["state"][0], first["global_step"], first["state"][1]) == (epochs, steps, validations)


@pytest.mark.soak  # the rule, and a loop that catches what ends a mini-batch: test_caught.py
def test_a_worker_that_leaves_a_batch_out_takes_part_in_the_step(edl: Any, tmp_path: Any) -> None:
    script = [SCRIPT, "--way", "leaves out", "--leaves-out", "--step-time", "0"]
    job = Job(edl, tmp_path / "out", 2, epochs=2, script=script)
    out, err = job.launcher.communicate(timeout=patient(120))
    assert job.launcher.returncode == 0, out + err
    first, second = job.results()
    assert first["state"] == second["state"] and first["state"][0] == [0, 1]
    assert first["global_step"] == first["steps"]


@pytest.mark.soak
def test_workers_stop_together_where_a_callback_says_so(edl: Any, tmp_path: Any) -> None:
    script = [SCRIPT, "--way", "stops", "--patience", "2", "--step-time", "0"]
    job = Job(edl, tmp_path / "out", 2, script=script)
    out, err = job.launcher.communicate(timeout=patient(120))
    assert job.launcher.returncode == 0, out + err
    first, second = job.results()
    assert first["state"] == second["state"] and first["state"][0] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("at_least", [0, pytest.param(20, marks=pytest.mark.soak)])
def test_the_whole_story_ends_where_lightning_alone_does(edl: Any, tmp_path: Any, at_least: int) -> None:
    results, alone, wanted, empty = tell(edl, tmp_path, SCRIPT, "--plain", at_least=at_least)
    sys.stdout.write(f"after {wanted} epochs: loss {results[0]['loss']!r}, of Lightning alone {alone['loss']!r}\n")
    assert len(results) == 2 and results[0]["state"] == results[1]["state"]
    assert results[0]["loss"] == pytest.approx(alone["loss"], abs=1e-6)
    assert results[0]["global_step"] == results[0]["steps"] - empty == alone["global_step"]
    epochs, validations, *_ = results[0]["state"]
    assert epochs == list(range(wanted)) and validations == wanted
