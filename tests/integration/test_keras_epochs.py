"""Keras's `fit` as its documentation has it, in jobs whose workers come, die and go: epochs, validation, callbacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pace import patient
from saved_job import JOBS, Life

from edl.core.audit.kept_steps import lineage
from edl.core.audit.sample_account import account
from edl.core.data.permutation import samples_at
from edl.protocol.audit_lines import BatchGiven
from edl.protocol.data_nouns import DataSpec
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SAMPLES, VALIDATED, BATCH = 203, 101, 16
SCRIPT = "keras_epochs.py"


def lines(life: Life) -> dict[str, list[dict[str, Any]]]:
    """What each worker's callback has heard, in order."""
    return {
        file.stem: [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(life.out.glob("epochs-*.jsonl"))
    }


def expect_alike(life: Life) -> dict[int, dict[str, Any]]:
    """Each epoch, with its number, metrics and what callbacks have counted, is the same on all who were in it."""
    ends: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for worker, told in lines(life).items():
        begun = [line["begins"] for line in told if "begins" in line]
        ended = [line["ends"] for line in told if "ends" in line]
        assert begun == list(range(begun[0], begun[0] + len(begun))), (worker, begun)
        assert ended == begun[: len(ended)] and len(begun) - len(ended) <= 1, (worker, begun, ended)
        for line in told:
            if "ends" in line:
                ends[line["ends"]].append(line)
    for epoch, found in sorted(ends.items()):
        assert all(line == found[0] for line in found), (epoch, found)
        assert found[0]["logs"]["val_seen"] == VALIDATED, "each sample once"
    return {epoch: found[0] for epoch, found in ends.items()}


def begun(life: Life) -> int:
    """The newest epoch that a worker has begun."""
    return max((line.get("begins", -1) for told in lines(life).values() for line in told), default=-1)


def wait_epoch(life: Life, epoch: int) -> None:
    life.edl.wait(lambda: life.status() and begun(life) >= epoch, f"epoch {epoch}", timeout_s=90)


def global_batches(audit: Path) -> list[tuple[int, list[int]]]:
    """Of each step of one life that counts: its epoch, and the samples of all workers."""
    spec, audits, found = DataSpec(SAMPLES, 1, BATCH, True), read(audit), []
    for span in lineage(audits):
        given = {
            audit.worker: {line.step: line for line in audit.lines if isinstance(line, BatchGiven)} for audit in audits
        }
        for step in range(span.after_step + 1, span.until_step + 1):
            shares = [given[worker][step] for worker in span.members if step in given[worker]]
            ids = [int(one) for share in shares for piece in share.ranges for one in samples_at(spec, piece)]
            found.append((shares[0].epoch, ids))
    return found


def loss_alone(edl: Any, folder: Path, steps: list[tuple[int, list[int]]], ends: dict[int, dict[str, Any]]) -> float:
    """Of Keras on one worker, on the same global batches and by the same learning rates."""
    plan = [{"ids": ids, "rate": ends[epoch]["logs"]["learning_rate"]} for epoch, ids in steps if ids]
    (folder / "steps.json").write_text(json.dumps(plan))
    command = [*edl.warm.command(JOBS / "keras_alone.py", "tensorflow"), str(folder / "steps.json")]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    said = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=patient(120), check=True).stdout
    return float(said.split()[-1])


@pytest.mark.slow
def test_epochs_through_growth_a_kill_and_two_lives(edl: Any, tmp_path: Path) -> None:
    """2 -> 3 -> kill -9 -> 2 -> preempted and resumed; then the same steps by Keras alone."""
    until = tmp_path / "until"
    arguments = (SCRIPT, "--until", str(until), "--step-time", "0.03")
    how: dict[str, Any] = {"checkpoint": tmp_path / "ck", "audit": True, "environ": {"EDL_MAX_RESTARTS": "0"}}
    first = Life(edl, tmp_path / "first", *arguments, **how)
    first.wait_size(2)
    wait_epoch(first, 1)
    first.scale(3)
    first.wait_size(3)
    wait_epoch(first, begun(first) + 1)
    os.kill(first.pid(1), signal.SIGKILL)
    first.wait_size(2)
    wait_epoch(first, begun(first) + 1)
    first.launcher.send_signal(signal.SIGTERM)
    first.finish(75)
    before = expect_alike(first)

    epochs = max(before) + 4
    until.write_text(str(epochs))  # at full speed
    then = Life(edl, tmp_path / "then", *arguments, **how)
    then.finish()
    after = expect_alike(then)
    resumed = min(after)
    assert 0 < resumed <= max(before) + 1, "in the epoch that it was in"
    assert set(before) | set(after) == set(range(epochs))
    results = then.results()
    assert len(results) == 2
    assert all(one["state"] == results[0]["state"] for one in results)
    assert all(one["epochs"] == list(range(epochs)) and one["history"] == results[0]["history"] for one in results)
    newcomer = next(told for told in lines(first).values() if told[0]["begins"] > 0)
    assert newcomer[0]["generation"] > 1
    found = account([*read(first.audit), *read(then.audit)])
    assert found.clean, found
    assert [(epoch.total, epoch.trained) for epoch in found.epochs] == [(SAMPLES, SAMPLES)] * epochs
    expect_one_writer(first, then)
    steps = [*global_batches(first.audit), *global_batches(then.audit)]
    alone = loss_alone(edl, tmp_path, steps, before | after)
    assert after[epochs - 1]["logs"]["val_loss"] == pytest.approx(alone, abs=1e-6)


@pytest.mark.soak
def test_all_workers_stop_early_together(edl: Any, tmp_path: Path) -> None:
    """By `EarlyStopping`, in the same epoch, long before the last one that `fit` was asked for."""
    until, wanted = tmp_path / "until", 10**6
    arguments = (SCRIPT, "--until", str(until), "--patience", "1", "--step-time", "0")
    life = Life(edl, tmp_path / "life", *arguments, environ={"EDL_MAX_RESTARTS": "0"})
    life.finish(timeout_s=240)
    ends, results = expect_alike(life), life.results()
    last = max(ends)
    assert len(results) == 2 and 0 < last < wanted
    assert all(one["epochs"] == list(range(last + 1)) and one["state"] == results[0]["state"] for one in results)
    losses = [ends[epoch]["logs"]["val_loss"] for epoch in sorted(ends)]
    assert losses[-1] >= min(losses[:-1]), "it had become no better"
    assert all(after < min(losses[:at]) for at, after in enumerate(losses[:-1]) if at), "and before it had, each time"


@pytest.mark.soak
def test_a_death_in_a_validation_leaves_each_sample_counted_once(edl: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    arguments = (SCRIPT, "--until", str(until), "--step-time", "0.03", "--validation", "0.2")
    how: dict[str, Any] = {"workers": 3, "audit": True, "environ": {"EDL_MAX_RESTARTS": "0"}}
    life = Life(edl, tmp_path / "life", *arguments, **how)
    life.wait_size(3)
    wait_epoch(life, 1)
    victim = life.pid(1)
    validated = lambda: {int(one.name.split("-")[1]) for one in life.out.glob(f"validates-*-{victim}")}  # noqa: E731
    before = validated()
    edl.wait(lambda: validated() - before, "the victim validates", timeout_s=60)
    os.kill(victim, signal.SIGKILL)
    [epoch] = validated() - before
    life.wait_size(2)
    wait_epoch(life, epoch + 2)
    last = begun(life) + 3
    until.with_suffix(".new").write_text(str(last))
    until.with_suffix(".new").rename(until)
    life.finish()
    assert lines(life)[f"epochs-{victim}"][-1].get("begins") == epoch, "it died before the end of that epoch"
    ends = expect_alike(life)
    assert sorted(ends) == list(range(last)), "the one that it died in, too"
    results = life.results()
    assert len(results) == 2 and results[0]["state"] == results[1]["state"]
    found = account(read(life.audit))
    assert found.clean and len(found.epochs) == last, found


def expect_one_writer(*lives: Life) -> None:
    """Files of checkpoints are whole, and those of TensorBoard are of workers that had rank 0."""
    for life in lives:
        first = {
            worker.split("-")[1] for worker, told in lines(life).items() if any(not one.get("rank", 1) for one in told)
        }
        files = list((life.out / "board").rglob("events.out.tfevents.*"))
        assert files
        assert {file.name.split(".")[-3] for file in files} <= first, (files, first)
        assert list(life.out.glob("epoch-*.weights.h5"))
