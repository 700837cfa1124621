"""Unchanged scripts of torchrun's under `edl torchrun`: they grow, lose a worker, and train as under torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SCRIPT = HERE / "originals" / "ddp_digits.py"
LOSSES = HERE / "jobs" / "torchrun_losses.py"
COUNTS = HERE / "jobs" / "torchrun_counts.py"
LEISURE = HERE / "jobs" / "at_leisure"
FAST = {"EDL_LOCAL_COORDINATOR": "embedded"}  # it boots so; the first job has the one that users have


def test_a_script_of_torchrun_grows_loses_a_worker_and_ends_with_equal_weights(edl: Any, tmp_path: Path) -> None:
    """2 -> 3 -> kill -9 -> 2, of which the newcomer comes into an epoch that is not its script's first."""
    edl.cwd = ROOT
    audit, hurry = tmp_path / "audit", tmp_path / "hurry"
    environ = {"PYTHONPATH": f"{LEISURE}:{ROOT}", "EDL_TEST_HURRY": str(hurry), "CUDA_VISIBLE_DEVICES": ""}
    flags = ["--nproc-per-node", "2", "--nnodes", "1:3", "--rdzv-id", "digits"]
    job = edl.start("torchrun", *flags, "--audit", str(audit), "--check-weights", "10", str(SCRIPT), **environ)

    def trains(size: int) -> Any:
        assert job.poll() is None, job.communicate()
        status = edl.status("digits")
        return status if status["size"] == size and status["state"] == "running" and status["epoch"] else None

    edl.wait(lambda: trains(2), "an epoch of 2 workers", timeout_s=90)
    assert edl("scale", "digits", "3", timeout_s=60).returncode == 0
    there = edl.wait(lambda: trains(3), "3 workers", timeout_s=90)
    step = there["step"]
    assert there["ring"] == "torch", there
    status = edl.wait(lambda: (now := trains(3)) and now["step"] > step + 3 and now, "steps of 3", timeout_s=60)
    os.kill(next(worker["pid"] for worker in status["workers"] if worker["rank"] == 0), signal.SIGKILL)
    edl.wait(lambda: trains(2), "2 workers again", timeout_s=60)
    hurry.touch()
    out, err = job.communicate(timeout=patient(120))
    assert job.returncode == 0, out + err
    ends = re.findall(r"ends with (\w+) after step (\d+)", out)
    assert len(ends) == 2 and len(set(ends)) == 1, out
    accuracy = [float(found) for found in re.findall(r"epoch 7 accuracy ([\d.]+)", out)]
    assert len(accuracy) == 2 and min(accuracy) > 0.8, out
    found = edl.json("data", "verify", str(audit))
    assert found["clean"] and [epoch["over"] for epoch in found["epochs"]] == [True] * 8, found


@pytest.mark.slow
def test_a_newcomer_has_what_the_script_counts_by_hand_and_its_average_of_the_weights(edl: Any, tmp_path: Path) -> None:
    """Its collectives are by that count, and its rates by the number of a batch that a generator hands on."""
    edl.cwd = ROOT
    hurry = tmp_path / "hurry"
    environ = {"PYTHONPATH": str(ROOT), "EDL_TEST_HURRY": str(hurry), "CUDA_VISIBLE_DEVICES": "", **FAST}
    flags = ["--nproc-per-node", "2", "--nnodes", "1:3", "--rdzv-id", "counts", "--check-weights", "1"]
    job = edl.start("torchrun", *flags, str(COUNTS), **environ)

    def trains(size: int, after: int = 0) -> Any:
        assert job.poll() is None, job.communicate()
        status = edl.status("counts")
        return status if status["size"] == size and status["step"] > after else None

    edl.wait(lambda: trains(2, after=7), "steps of 2 workers", timeout_s=90)
    assert edl("scale", "counts", "3", timeout_s=60).returncode == 0
    step = edl.wait(lambda: trains(3), "3 workers", timeout_s=90)["step"]
    edl.wait(lambda: trains(3, after=step + 7), "steps of 3", timeout_s=60)
    hurry.touch()
    out, err = job.communicate(timeout=patient(120))
    assert job.returncode == 0, out + err
    ends = re.findall(r"ends with (.+)", out)
    assert len(ends) == 3 and len(set(ends)) == 1, out
    assert all(re.search(rf"rank {rank} has (\d+) of \1\b", out) for rank in range(2)), "who was there keeps its own"


def run_real_torchrun(folder: Path, workers: int, batches: int) -> None:
    """PyTorch's gloo aborts the process now and then as it ends: "terminate called without an active exception"."""
    line = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(workers),
        str(LOSSES),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    for tries_left in (2, 1, 0):
        done = subprocess.run(
            [*line, str(folder), str(batches)],
            env=environ, capture_output=True, text=True, check=False, timeout=patient(120),
        )  # fmt: skip
        if not tries_left or "terminate called without an active exception" not in done.stderr:
            assert done.returncode == 0, done.stderr
            return


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "batches"),
    [pytest.param(1, 1, marks=pytest.mark.soak), pytest.param(2, 1, marks=pytest.mark.soak), (2, 3)],
)
def test_losses_are_those_under_torchrun(edl: Any, tmp_path: Path, workers: int, batches: int) -> None:
    """`batches` make an update, of which `edl torchrun` is not told."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    run_real_torchrun(theirs, workers, batches)
    line = ["torchrun", "--standalone", "--nproc-per-node", str(workers), str(LOSSES), str(mine), str(batches)]
    done = edl(*line, timeout_s=120, **FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("one update is made of 3 batches" in done.stderr) == (batches == 3), done.stderr
    for rank in range(workers):
        expected, found = (json.loads((folder / f"{rank}.json").read_text()) for folder in (theirs, mine))
        assert len(found["losses"]) == 3 * 30 // workers
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-6)
        for ours, of_torch in zip(found["measured"], expected["measured"], strict=True):
            assert ours == pytest.approx(of_torch, abs=1e-6)


@pytest.mark.slow
def test_a_script_is_checked_and_tried(edl: Any, tmp_path: Path) -> None:
    found = json.loads(edl("check", "--json", "--try", str(LOSSES), str(tmp_path), "5", timeout_s=60).stdout)
    assert found["trial"] == {"batches": 5, "refused": "", "failed": "", "ended": False}, found
    assert [one["kind"] for one in found["findings"]] == ["file"] and found["adds_up"] and found["wraps"]
    assert [*tmp_path.iterdir()] == []
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1).step()\n")
    done = edl("check", "--try", str(script))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "train.py: refused: train.py:2: the script updates a model by SGD without DistributedData" in done.stdout
    child = "import os, time\nif os.fork() == 0:\n    time.sleep(300)\nos.kill(os.getpid(), 9)\n"
    script.write_text(child)
    done = edl("check", "--try", str(script), timeout_s=60)
    assert "a trial of it has made no update: its process has died" in done.stdout, done.stdout + done.stderr
    edl.wait(lambda: not edl.processes(), "the end of the child, which was killed", timeout_s=10)
