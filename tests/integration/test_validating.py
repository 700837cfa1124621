"""The evaluations of Lightning, Hugging Face's Trainer and Accelerate, shared out while workers come, die and go."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from elastic_job import Job
from test_evaluation import told

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
KILLS = 4
BATCHES = [7 * number for number in range(15)]  # of 101 samples


@pytest.mark.soak  # rings that break as they ask: tests/unit/torch/test_between_steps.py; a death: test_evaluation.py
@pytest.mark.parametrize("library", ["lightning", "transformers", "accelerate"])
def test_each_sample_is_evaluated_once_beside_a_death_in_it(edl: Any, tmp_path: Path, library: str) -> None:
    """At 3 workers, with one that dies in an evaluation, at 2, and with one that comes."""
    script = ["torch_validating.py", "--way", "validating", "--library", library, "--each", "0.05"]
    edl.environ |= {"HF_HUB_OFFLINE": "1"}
    job = Job(
        edl,
        tmp_path / "out",
        3,
        script=[*script, "--step-time", "0.02"],
        EDL_RING="torch",
        EDL_MAX_NP="3",
        EDL_MAX_RESTARTS="3",
    )
    job.wait_size(3)
    job.wait_steps(2)
    [victim] = [worker["pid"] for worker in job.status()["workers"] if worker["rank"] == 1]
    sign = job.out / f"evaluating-{victim}"
    sign.unlink(missing_ok=True)
    edl.wait(sign.exists, "the victim evaluates", timeout_s=60)
    os.kill(victim, signal.SIGKILL)
    edl.wait(lambda: losses(job), "its loss is known")
    job.wait_size(3)
    job.wait_steps(2)
    job.scale(2)
    job.wait_size(2)
    job.wait_steps(3)
    job.finish()
    job.expect_equal_models()
    job.expect_exactly_once()
    expect_same_figures(job)
    expect_each_batch_once(job, victim, 2 if library == "accelerate" else 0)
    expect_as_alone(job)


def losses(job: Job) -> list[dict[str, Any]]:
    return [event for event in job.events() if event["kind"] == "worker_lost"]


@pytest.mark.soak
@pytest.mark.parametrize("library", ["lightning", "transformers", "accelerate"])
def test_evaluations_after_each_step_of_less_than_a_batch_for_each(edl: Any, tmp_path: Path, library: str) -> None:
    """A worker that dies, comes or goes does so beside one: so a newcomer's first step is evaluated, too."""
    seed = int(os.environ.get("EDL_FIRST_SEED", secrets.randbelow(2**31)))
    print(f"seed {seed}")  # noqa: T201 - what the moments of the kills follow from
    random = Random(seed)
    script = ["torch_validating.py", "--way", "validating", "--library", library, "--often", "--step-time", "0.02"]
    edl.environ |= {"HF_HUB_OFFLINE": "1"}
    job = Job(
        edl, tmp_path / "out", 3, script=script, EDL_RING="torch", EDL_MAX_NP="3", EDL_MAX_RESTARTS=str(2 * KILLS)
    )
    for kill in range(KILLS):
        job.wait_size(3)
        job.wait_steps(1)
        time.sleep(random.uniform(0, 0.3))  # a moment of the step, of what follows it, or of the next one
        os.kill(random.choice([worker["pid"] for worker in job.status()["workers"]]), signal.SIGKILL)
        edl.wait(lambda: len(losses(job)) > kill, "its loss is known", timeout_s=60)  # noqa: B023 - awaited here
        if random.random() < 0.5:
            job.scale(2)
            job.wait_size(2)
            job.scale(3)
    job.wait_size(3)
    job.wait_steps(2)
    job.finish()
    job.expect_equal_models()
    job.expect_exactly_once()
    expect_same_figures(job, 3)
    if library == "transformers":
        expect_best_at_end(job)


def expect_same_figures(job: Job, samples: int = 101) -> None:
    """Of each epoch, on all workers that were in it."""
    by_epoch: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for lines in told(job).values():
        for line in lines:
            if "found" in line:
                by_epoch[line["epoch"]].append(line["found"])
    assert sorted(by_epoch) == list(range(1, max(by_epoch) + 1)), "each epoch is evaluated"
    for epoch, found in by_epoch.items():
        assert all(one == found[0] for one in found), (epoch, found)
        assert {value for name, value in found[0].items() if name.endswith("seen")} == {samples}


def expect_best_at_end(job: Job) -> None:
    """By `load_best_model_at_end`, whichever worker has saved it."""
    lines = [line for mine in told(job).values() for line in mine]
    lowest = min(line["found"]["eval_loss"] for line in lines if "found" in line)
    tested = [line["tested"]["eval_loss"] for line in lines if "tested" in line]
    assert tested == pytest.approx([lowest] * 3, rel=1e-6)


def expect_each_batch_once(job: Job, victim: int, filled: int) -> None:
    """In each epoch; what the dead one had computed of its last one, the others have made again. `filled`: batches that
    at most are given to another worker, too, where there is none left for it in the last round.
    """
    lines = told(job)
    last = max(line["epoch"] for line in lines[victim] if "batch" in line)
    made_by_dead = {line["batch"] for line in lines[victim] if "batch" in line and line["epoch"] == last}
    by_epoch: dict[int, Counter[int]] = defaultdict(Counter)
    for pid, mine in lines.items():
        for line in mine:
            if "batch" in line and not (pid == victim and line["epoch"] == last):
                by_epoch[line["epoch"]][line["batch"]] += 1
    for epoch, batches in by_epoch.items():
        told_before = made_by_dead if epoch == last and filled else set()  # rounds: told, it is not made again
        assert set(batches) <= set(BATCHES) <= set(batches) | told_before, (epoch, batches)
        assert batches.total() <= len(BATCHES) + filled, (epoch, batches)


def expect_as_alone(job: Job) -> None:
    """The last figures are those that the library alone finds, on the weights of the end."""
    for lines in told(job).values():
        if not (alone := [line["alone"] for line in lines if "alone" in line]):
            continue  # it was told to leave, or died
        last = [line["found"] for line in lines if "found" in line][-1]
        assert last == pytest.approx({name: alone[0][name] for name in last}, rel=1e-5, abs=1e-6)
        [tested] = [line["tested"] for line in lines if "tested" in line]
        shared = {name: value for name, value in tested.items() if name in alone[0]}
        assert shared and shared == pytest.approx({name: alone[0][name] for name in shared}, rel=1e-5, abs=1e-6)
