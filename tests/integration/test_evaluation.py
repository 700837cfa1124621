"""Evaluations that all workers share, while workers come, die and go."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
BATCHES = 15  # of 7 in 101 samples


def told(job: Job) -> dict[int, list[dict[str, Any]]]:
    """What each worker has written down, in order."""
    return {
        int(file.stem.split("-")[1]): [json.loads(line) for line in file.read_text().splitlines()]
        for file in job.out.glob("evaluated-*.jsonl")
    }


def expect_same_figures(job: Job) -> dict[int, dict[str, Any]]:
    """Of each epoch, on all workers that were in it; each sample once. Returns these lines by epoch."""
    by_epoch: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for lines in told(job).values():
        for line in lines:
            if "found" in line:
                by_epoch[line["epoch"]].append(line)
    for epoch, lines in by_epoch.items():
        assert all(line["found"] == lines[0]["found"] for line in lines), (epoch, lines)
        assert lines[0]["found"]["seen"] == 101 and lines[0]["found"]["in order"], lines[0]
    assert sorted(by_epoch) == list(range(1, max(by_epoch) + 1)), "each epoch is evaluated"
    return {epoch: lines[0] for epoch, lines in by_epoch.items()}


def expect_gathered(job: Job) -> None:
    """In each step all workers get the same samples, all of that step."""
    steps: dict[int, list[list[int]]] = defaultdict(list)
    for lines in told(job).values():
        for line in lines:
            if "gathered" in line:
                assert line["twice"] == 2 * sum(line["gathered"])
                steps[line["step"]].append(line["gathered"])
    assert all(one == found[0] for found in steps.values() for one in found)
    assert max(len(found[0]) for found in steps.values()) > 16, "of more than one worker"


@pytest.mark.parametrize(
    ("script", "ring", "batch"),
    [
        ("torch_evaluating.py", "torch", "16"),
        pytest.param("torch_evaluating.py", "horovod", "128", marks=pytest.mark.soak),
        pytest.param("tf_evaluating.py", "horovod", "16", marks=pytest.mark.soak),
    ],
)
def test_each_epoch_is_evaluated_by_all_who_are_there(
    edl: Any, tmp_path: Path, script: str, ring: str, batch: str
) -> None:
    """Workers come and go; where an epoch is a single step, they do so at its end, where the others evaluate."""
    words = [script, "--step-time", "0.02", "--batch", batch]
    job = Job(edl, tmp_path / "out", 2, script=words, EDL_RING=ring, EDL_MAX_NP="3")
    job.wait_size(2)
    job.wait_steps(3)
    job.scale(3)
    job.wait_size(3)
    job.wait_steps(3)
    job.scale(2)
    job.wait_size(2)
    job.wait_steps(3)
    events = job.finish()
    bad = [event for event in events if event["kind"] in {"worker_lost", "batch_voided"}]
    assert not bad, json.dumps(bad)
    job.expect_equal_models()
    job.expect_exactly_once()
    by_epoch = expect_same_figures(job)
    assert {line["size"] for line in by_epoch.values()} == {2, 3}
    expect_gathered(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ring"),
    [("torch_evaluating.py", "torch"), pytest.param("tf_evaluating.py", "horovod", marks=pytest.mark.soak)],
)
def test_a_death_in_an_evaluation_repeats_only_its_share(edl: Any, tmp_path: Path, script: str, ring: str) -> None:
    words = [script, "--step-time", "0.02", "--each", "0.1"]
    job = Job(edl, tmp_path / "out", 3, script=words, EDL_RING=ring, EDL_MAX_RESTARTS="0")
    job.wait_size(3)
    job.wait_steps(2)
    [victim] = [worker["pid"] for worker in job.status()["workers"] if worker["rank"] == 1]
    sign = job.out / f"evaluating-{victim}"
    sign.unlink()
    edl.wait(sign.exists, "the victim evaluates", timeout_s=60)
    os.kill(victim, signal.SIGKILL)
    job.wait_size(2)
    job.wait_steps(3)
    job.finish()
    job.expect_equal_models()
    job.expect_exactly_once()
    expect_same_figures(job)
    lines = told(job)
    epoch = 1 + sum("found" in line for line in lines[victim])  # that it died in
    survivors = [
        line["batch"]
        for pid in lines
        if pid != victim
        for line in lines[pid]
        if "batch" in line and line["epoch"] == epoch
    ]
    assert sorted(Counter(survivors)) == [7 * number for number in range(BATCHES)]
    assert max(Counter(survivors).values()) == 1, "what a survivor has computed, no worker computes again"


@pytest.mark.slow
def test_an_evaluation_after_an_update_trains_no_samples_twice(edl: Any, tmp_path: Path) -> None:
    """In a loop over a prepared loader, while workers come and go at such a place, and die there."""
    job = Job(edl, tmp_path / "out", 2, script=["torch_evaluating_within.py", "--step-time", "0.02"], EDL_RING="torch")
    job.wait_size(2)
    job.wait_steps(2)
    for size in (3, 2, 3):
        job.scale(size)
        job.wait_size(size)
        job.wait_steps(3)
    [victim] = [worker["pid"] for worker in job.status()["workers"] if worker["rank"] == 1]
    (job.out / f"dies-{victim}").touch()
    edl.wait(lambda: [event for event in job.events() if event["kind"] == "worker_lost"], "it has died", timeout_s=60)
    job.wait_steps(3)
    job.finish()
    job.expect_equal_models()
    job.expect_exactly_once()
    assert {(result["step"] - 1) for result in job.results()} == {job.results()[0]["batches"]}
