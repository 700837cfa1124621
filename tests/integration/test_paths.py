"""Each way of training, through a newcomer, a kill with a replacement, and a worker that leaves: equal models.

What a way of PyTorch or TensorFlow needs beyond that is in the job's own asserts. With EDL_TEST_KILLS=20 each is a
soak: so many workers are killed, one after the other.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from typing import Any

import pytest
from elastic_job import Job

KILLS = int(os.environ.get("EDL_TEST_KILLS", "1"))
LIMITS: dict[str, Any] = {"EDL_MAX_RESTARTS": str(KILLS + 2), "EDL_MAX_NP": "3"}
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600 + 40 * KILLS)]


def through_all(edl: Any, job: Job) -> list[dict[str, Any]]:
    """2 -> 3, one is killed and replaced, or several one after the other, -> 2; the job's events."""
    job.wait_size(2)
    job.wait_steps(3)
    scale(job, 3)
    for number in range(KILLS):
        time.sleep(random.random() if number else 0.0)  # another moment of a step, and of an epoch
        kill(edl, job, of_rank(job, (1 + number) % 3))
        job.wait_size(3)
        job.wait_steps(3)
    scale(job, 2)
    return job.finish()


def of_rank(job: Job, rank: int) -> dict[str, Any]:
    return next(worker for worker in job.status()["workers"] if worker["rank"] == rank)


def kill(edl: Any, job: Job, victim: dict[str, Any]) -> None:
    before = job.status()["generation"]
    os.kill(victim["pid"], signal.SIGKILL)
    edl.wait(lambda: victim["id"] not in ids(job), "its loss is known", timeout_s=60)
    edl.wait(lambda: job.status()["generation"] > before, "the others are in another ring", timeout_s=60)


def scale(job: Job, size: int) -> None:
    job.scale(size)
    job.wait_size(size)
    job.wait_steps(3)


def ids(job: Job) -> set[str]:
    return {worker["id"] for worker in job.status()["workers"]}


def expect_equal_after_every_switch(job: Job) -> None:
    """All that the job has told of, before the next step."""
    found = defaultdict(list)
    for file in job.out.glob("switches-*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            found[line["generation"]].append(line["state"])
    assert len(found) >= 3, found
    assert all(len(set(states)) == 1 for states in found.values()), found
    assert max(len(states) for states in found.values()) == 3


def check(edl: Any, job: Job) -> None:
    events = through_all(edl, job)
    sizes = [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"]
    assert sizes[0] == (2, 3) and sizes[-1] == (3, 2)
    lost = [event for event in events if event["kind"] == "worker_lost"]
    assert len(lost) == KILLS, lost
    voided = Counter((event["worker"], event["generation"]) for event in events if event["kind"] == "batch_voided")
    assert max(voided.values(), default=0) <= 1, "one in each ring that broke, or that the word to leave came late in"
    assert len(job.results()) == 2
    job.expect_equal_models()
    expect_equal_after_every_switch(job)
    job.expect_exactly_once()


@pytest.mark.parametrize(
    ("way", "ring"),
    [
        pytest.param("groups", "horovod", marks=pytest.mark.soak),
        pytest.param("amp", "horovod", marks=pytest.mark.soak),  # its scaler: test_ring_torch_optimizer.py
        pytest.param("compiled", "horovod", marks=pytest.mark.soak),
        ("horovod", "horovod"),
        pytest.param("groups", "torch", marks=pytest.mark.soak),
        pytest.param("amp", "torch", marks=pytest.mark.soak),
        ("horovod", "torch"),
    ],
)
def test_torch(edl: Any, tmp_path: Any, way: str, ring: str) -> None:
    job = Job(edl, tmp_path / "out", 2, script=["torch_paths.py", "--way", way], EDL_RING=ring, **LIMITS)
    check(edl, job)


@pytest.mark.slow
def test_a_strangers_script(edl: Any, tmp_path: Any) -> None:
    """Written without a thought of other workers: weights and their average are equal after each step, to the bit."""
    job = Job(edl, tmp_path / "out", 2, script=["torch_stranger.py", "--way", "its own"], **LIMITS)
    check(edl, job)
    living = {f"steps-{result['pid']}" for result in job.results()}
    found = defaultdict(set)
    workers = Counter[int]()
    for file in job.out.glob("steps-*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines if file.stem in living else lines[:-1]:  # the last step of who is killed may be void
            found[line["step"]].add(line["digest"])
            workers[line["step"]] += 1
    different = {step: digests for step, digests in found.items() if len(digests) > 1}
    assert not different
    assert set(workers.values()) >= {2, 3}
    for result in job.results():  # what a void mini-batch did to them is undone
        assert result["state"][2:4] == [len(found)] * 2, (result, len(found))


@pytest.mark.soak  # deaths in evaluations: test_evaluation.py, tests/unit/trainer/test_shared_evaluation.py
def test_an_epoch_whose_evaluation_was_broken_off_is_evaluated_again(edl: Any, tmp_path: Any) -> None:
    """The script counts epochs by itself, so each must be given to it once, an empty one where all was trained."""
    job = Job(edl, tmp_path / "out", 2, script=["torch_paths.py", "--way", "horovod"], EDL_MAX_RESTARTS="1")
    job.wait_size(2)
    victim = of_rank(job, 1)
    edl.wait((job.out / f"evaluating-{victim['pid']}").exists, "the victim evaluates", timeout_s=60)
    kill(edl, job, victim)
    job.wait_size(2)
    job.wait_steps(3)
    job.finish()
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.parametrize(
    "way",  # soak: a kill beside `fit` is in test_keras_epochs.py, one in an eager loop in test_pipelines.py
    [*(pytest.param(way, marks=pytest.mark.soak) for way in ("eager", "function", "fit", "graph")), "horovod"],
)
def test_tensorflow(edl: Any, tmp_path: Any, way: str) -> None:
    """A newcomer is warm before a survivor waits for it, too: all that is traced was in its rehearsal."""
    script = ["tensorflow_elastic.py", "--way", way]
    job = Job(edl, tmp_path / "out", 2, script=script, **LIMITS)
    check(edl, job)
    newcomers = [result for result in job.results() if result["newcomer"]]
    assert all(result.get("averaged", 0) == 0 for result in newcomers)  # nothing of a rehearsal is left in the metrics
    if way in {"function", "fit"}:
        assert all(result["traces"] and all(result["traces"]) for result in newcomers)
    if way != "horovod":
        job.expect_batches_as_handed_out()
