"""Batches that keep to a policy while workers come, go and die: seen in what all workers wrote down of each step."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest
from elastic_job import Job

from edl.core.audit.kept_steps import lineage
from edl.protocol.audit_lines import BatchGiven, Sat
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

BATCH = 12


def batches(job: Job) -> dict[int, int]:
    """Samples of each step that counts, of all workers together."""
    audits = read(job.audit)
    found: Counter[int] = Counter()
    for span in lineage(audits):
        for audit in audits:
            if audit.worker in span.members:
                given = {line.step: line for line in audit.lines if isinstance(line, BatchGiven)}
                for step in range(span.after_step + 1, span.until_step + 1):
                    found[step] += sum(map(len, given[step].ranges)) if step in given else 0
    return dict(found)


def began(job: Job) -> list[int]:
    """The steps that generations took over after."""
    return sorted({line.step for audit in read(job.audit) for line in audit.lines if isinstance(line, Sat)})


def final_steps(job: Job) -> set[int]:
    """Those that end an epoch, which may be short."""
    last: dict[int, int] = {}
    for audit in read(job.audit):
        for line in audit.lines:
            if isinstance(line, BatchGiven):
                last[line.epoch] = max(line.step, last.get(line.epoch, 0))
    return set(last.values())


@pytest.mark.soak  # how leases are cut: tests/unit/core/data/test_sample_ledger.py; a real job's are cut anew below
@pytest.mark.parametrize("reading", [pytest.param((), id="loop"), pytest.param(("--loaders", "1"), id="loader")])
def test_the_batch_of_all_stays_what_it_is(edl: Any, tmp_path: Any, reading: tuple[str, ...]) -> None:
    script = ["torch_elastic.py", "--batch", str(BATCH), "--step-time", "0.06", *reading]
    policy = {"EDL_MAX_RESTARTS": "0", "EDL_BATCH_POLICY": "fixed-global"}
    job = Job(edl, tmp_path / "out", 2, epochs=50, script=script, **policy)
    status = job.wait_size(2)
    changes = []
    for size in (4, 3):
        assert edl("scale", "s", str(size), "--wait", timeout_s=90).returncode == 0
        status = job.wait_size(size)
        changes.append(edl.wait(lambda size=size: recut_for(job, size), f"batches for {size}", timeout_s=30))
        job.wait_steps(20)
    killed = next(worker for worker in status["workers"] if worker["id"] != status["leader"] and worker["rank"])
    os.kill(killed["pid"], signal.SIGKILL)
    job.wait_size(2)
    changes.append(edl.wait(lambda: recut_for(job, 2), "batches for 2", timeout_s=30))
    job.wait_steps(20)
    assert job.status()["batching"] == "fixed-global"
    assert job.status()["batch"] == BATCH
    job.finish()
    job.expect_exactly_once()
    job.expect_equal_models()

    found, short = batches(job), final_steps(job)
    assert max(found.values()) == BATCH  # never more, also while newcomers come in
    settling = [range(start, change["after_step"] + 1) for start, change in zip(began(job)[-3:], changes, strict=True)]
    odd = {step: size for step, size in found.items() if size != BATCH and step not in short}
    assert all(any(step in steps for steps in settling) for step in odd), (odd, settling, short)
    assert all(change["batch"] == BATCH for change in changes)


def recut_for(job: Job, size: int) -> dict[str, Any] | None:
    """The newest time that leases were cut anew, if it was for so many workers."""
    found = [event for event in job.events() if event["kind"] == "recut"]
    return found[-1] if found and found[-1]["workers"] == size else None


@pytest.mark.parametrize(
    ("rule", "sizes"), [pytest.param("fixed-local,most=10", (8, 10), marks=pytest.mark.soak), ("function=", (8, 18))]
)
def test_a_maximum_and_a_function(edl: Any, tmp_path: Any, rule: str, sizes: tuple[int, int]) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text("def ours(workers):\n    return {1: 8, 2: 8, 3: 18}[workers]\n")
    name = f"{rule}{policy}:ours" if rule == "function=" else rule
    job = Job(edl, tmp_path / "out", 2, EDL_MAX_NP="3", EDL_BATCH_POLICY=name)
    job.wait_size(2)
    job.wait_steps(10)
    assert job.status()["batch"] == sizes[0]
    assert edl("scale", "s", "3", "--wait", timeout_s=90).returncode == 0
    job.wait_steps(20)
    job.finish()
    job.expect_exactly_once()
    found, short = batches(job), final_steps(job)
    assert {size for step, size in found.items() if step not in short} == set(sizes)


@pytest.mark.parametrize(
    ("way", "epochs"),
    [
        (["torch_elastic.py", "--batch", "6"], 20),
        pytest.param(["tensorflow_elastic.py", "--way", "graph"], 50, marks=pytest.mark.soak),
    ],
)
def test_a_newcomer_has_samples_where_all_of_its_epoch_was_leased(
    edl: Any, tmp_path: Any, way: list[str], epochs: int
) -> None:
    """Without any policy, and also where the script cuts batches itself."""
    script = [*way, "--step-time", "0.06"]
    job = Job(edl, tmp_path / "out", 1, epochs=epochs, script=script, EDL_SESSION_TIMEOUT="30")  # leases of 75 s
    job.wait_size(1)
    job.wait_steps(10)
    assert edl("scale", "s", "2", "--wait", timeout_s=90).returncode == 0
    change = edl.wait(lambda: recut_for(job, 2), "leases that are cut anew", timeout_s=30)
    job.wait_steps(20)
    job.finish()
    job.expect_exactly_once()
    job.expect_equal_models()
    found, short = batches(job), final_steps(job)
    assert change["after_step"] - began(job)[-1] < 60  # of 80 ms
    # Where its state comes beside the first step of its ring, it has none in that one.
    usual = found.keys() - short - {step + 1 for step in began(job)}
    assert {found[step] for step in usual if step > change["after_step"]} == {change["batch"]}
    assert change["batch"] == 2 * max(size for step, size in found.items() if step <= began(job)[-1])


def test_another_batch_is_asked_for_while_it_trains(edl: Any, tmp_path: Any) -> None:
    """All of it is trained by one worker after the other has died, too."""
    script = ["torch_elastic.py", "--batch", str(BATCH), "--step-time", "0.06"]
    job = Job(edl, tmp_path / "out", 2, epochs=40, script=script, EDL_MAX_RESTARTS="0")
    status = job.wait_size(2)
    job.wait_steps(3)
    asked = edl("batch", "s", "40")
    assert asked.returncode == 0 and asked.stdout == "job s: 40 samples a step asked for, of all workers together\n"
    cut = edl.wait(lambda: recut_for(job, 2), "the batch that was asked for", timeout_s=30)
    assert cut["batch"] == 40
    job.wait_steps(10)
    refused = edl("batch", "s", "1")
    assert refused.returncode == 1 and refused.stderr.endswith("needs a sample in each step: ask for 2 at least\n")
    os.kill(next(worker["pid"] for worker in status["workers"] if worker["id"] != status["leader"]), signal.SIGKILL)
    alone = job.wait_size(1)
    assert (alone["batching"], alone["batch"]) == ("asked", 40)
    again = edl.wait(lambda: recut_for(job, 1), "the same of one worker", timeout_s=30)
    job.wait_steps(10)
    job.finish()
    job.expect_exactly_once()
    whole = {step: size for step, size in batches(job).items() if step not in final_steps(job)}
    settling = range(began(job)[-1] + 1, again["after_step"] + 1)  # on what was leased to two
    assert {size for step, size in whole.items() if step <= cut["after_step"]} == {2 * BATCH}
    assert {size for step, size in whole.items() if step > cut["after_step"] and step not in settling} == {40}
