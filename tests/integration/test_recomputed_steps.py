"""Parts of steps that are computed again: by `edl replay`, and by other workers while the job trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pace import patient, set_pace

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

JOBS = Path(__file__).parent / "jobs"
QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
BIT_OF = 3  # a seed by which the bit that is flipped makes a difference at once


def start(edl: Any, out: Path, script: str, *words: str, flags: tuple[str, ...]) -> Any:
    out.mkdir(exist_ok=True)
    program = [*edl.warm.command(JOBS / script), "--out", str(out), *words]
    return edl.start("run", "--job", "again", "--virtual-workers", "4", "--ring", "torch", *flags, *program, **QUIET)


def at_step(edl: Any, step: int, size: int) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        status: dict[str, Any] = edl.status("again")
        return status if status["step"] >= step and status["size"] == len(status["workers"]) == size else None

    return edl.wait(there, f"step {step}", timeout_s=90)


def flip(edl: Any, out: Path, pid: int, kind: str) -> dict[str, Any]:
    """Have a bit flipped on the worker of this process."""
    (out / "flip.new").write_text(json.dumps({"number": 0, "pid": pid, "kind": kind, "seed": BIT_OF}))
    (out / "flip.new").rename(out / "flip.json")
    told = out / "flipped0.json"
    edl.wait(told.exists, "the flip", timeout_s=60)
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def replay(edl: Any, step: int, *more: str) -> tuple[int, list[str], str]:
    found = edl("replay", "again", "--step", str(step), *more, timeout_s=patient(120), **QUIET)
    return found.returncode, found.stdout.splitlines(), found.stderr


@pytest.mark.soak  # of a job that was not resumed: the test below
def test_a_replay_from_a_checkpoint_says_the_same_of_a_job_that_was_resumed_at_another_size(edl, tmp_path) -> None:
    saved, pace = tmp_path / "saved", tmp_path / "pace"
    pace.write_text("1.0")
    flags = ("--checkpoint", str(saved), "--audit", str(tmp_path / "audit"))
    words = ("--model", "cnn", "--epochs", "3", "--pace", str(pace))
    job = start(edl, tmp_path / "out", "same_bits.py", *words, flags=("-np", "2", *flags))
    at_step(edl, 6, 2)
    assert edl("preempt", "again", timeout_s=patient(60)).returncode == 0
    job.communicate(timeout=patient(60))
    set_pace(pace, "0")
    job = start(edl, tmp_path / "out", "same_bits.py", *words, flags=("-np", "1", *flags))
    out, err = job.communicate(timeout=patient(120))
    assert job.returncode == 0, out + err
    code, lines, told = replay(edl, 30)
    assert code == 0, told
    assert [line.split(":")[:2] for line in lines] == [[f"step 30, virtual worker {v}", " same"] for v in range(4)]
    assert "from the beginning" not in told
    assert f"from {saved}" in told
    code, lines, told = replay(edl, 4, "--virtual-worker", "2")  # before the checkpoint
    assert (code, len(lines)) == (0, 1)
    assert "from the beginning" in told
    code, _, told = replay(edl, 4000)
    assert (code, "has digests of steps up to 39" in told) == (2, True)


@pytest.mark.slow
def test_a_replay_shows_where_a_flipped_bit_changed_a_part(edl, tmp_path) -> None:
    flags = ("-np", "2", "--audit", str(tmp_path / "audit"))
    job = start(edl, tmp_path / "out", "flipped_bits.py", "--steps", "60", "--pace", "0.3", flags=flags)
    status = at_step(edl, 4, 2)
    flipped = flip(edl, tmp_path / "out", status["workers"][1]["pid"], "weight")
    job.communicate(timeout=patient(120))  # it fails, as its workers differ
    code, lines, told = replay(edl, flipped["step"])
    assert code == 1, told
    words = [line.split(": ")[1] for line in lines[:4]]
    assert words == ["same", "same", "differs", "differs"]  # the second worker has the last two
    assert "first to differ" not in told
    code, lines, _ = replay(edl, flipped["step"] + 2)
    assert code == 1
    assert lines[-1] == f"first to differ: step {flipped['step']}, virtual worker 2"


def test_a_job_without_what_a_replay_needs_says_so(edl, tmp_path) -> None:
    job = edl.start("run", "--job", "again", "-np", "1", "true")
    job.communicate(timeout=patient(60))
    found = edl("replay", "again", "--step", "1")
    assert (found.returncode, "job again has no virtual workers" in found.stderr) == (2, True)
    found = edl("replay", "another", "--step", "1")
    assert (found.returncode, "was not started on this machine" in found.stderr) == (2, True)


@pytest.mark.slow
def test_a_worker_that_computes_wrongly_is_expelled_and_the_job_goes_on(edl, tmp_path) -> None:
    flags = ("-np", "3", "--verify-compute", "25%", "--check-weights", "0", "--max-restarts", "3")
    job = start(edl, tmp_path / "out", "flipped_bits.py", "--pace", "0.02", flags=flags)
    status = at_step(edl, 80, 3)  # states are compared after the first steps, and not any more
    victim = status["workers"][1]
    flipped = flip(edl, tmp_path / "out", victim["pid"], "weight")

    def corrupted() -> list[dict[str, Any]]:
        return [one for one in edl.events("again") if one["kind"] == "corrupted"]

    edl.wait(corrupted, "the event", timeout_s=60)
    (found,) = corrupted()
    assert (found["worker"], found["certain"]) == (victim["id"], True)
    assert found["virtual_worker"] is not None
    assert found["after_step"] - flipped["step"] < 100
    at_step(edl, found["after_step"] + 20, 3)  # with another worker in its place
    (lost,) = [one for one in edl.events("again") if one["kind"] == "worker_lost"]
    assert (lost["worker"], lost["cause"]) == (victim["id"], "corrupted")
    assert len(corrupted()) == 1
    edl.wait(lambda: "computed otherwise than another" in edl.status("again")["bits"], "bits that are not held")
    assert edl("stop", "again").returncode == 0
    job.communicate(timeout=patient(60))


@pytest.mark.soak  # so it is in tests/unit/core/worker/test_compute_check.py
def test_of_two_workers_both_are_told_and_the_job_goes_on(edl, tmp_path) -> None:
    flags = ("-np", "2", "--verify-compute", "50%", "--check-weights", "0")
    job = start(edl, tmp_path / "out", "flipped_bits.py", "--pace", "0.02", flags=flags)
    status = at_step(edl, 80, 2)
    flipped = flip(edl, tmp_path / "out", status["workers"][0]["pid"], "weight")

    def corrupted() -> list[dict[str, Any]]:
        return [one for one in edl.events("again") if one["kind"] == "corrupted"]

    edl.wait(lambda: len(corrupted()) >= 2, "the events", timeout_s=60)
    assert {one["worker"] for one in corrupted()} == {one["id"] for one in status["workers"]}
    assert not any(one["certain"] for one in corrupted())
    at_step(edl, flipped["step"] + 60, 2)
    assert not any(one["kind"] == "worker_lost" for one in edl.events("again"))
    assert edl("stop", "again").returncode == 0
    job.communicate(timeout=patient(60))


def test_a_script_that_makes_its_own_batch_of_the_ids_is_told_how(edl, tmp_path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import torch, edl.torch as edl\n"
        "edl.init()\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)\n"
        "data = torch.ones(64, 2)\n"
        "for ids in edl.elastic_shard_generator(64, epochs=1).batches(2):\n"
        "    for x, share in edl.microbatches(data[ids]):\n"
        "        (model(x).mean() * share).backward()\n"
    )
    flags = ("--virtual-workers", "4", "--verify-compute", "1%", "--max-restarts", "0")
    job = edl.start("run", "-np", "1", *flags, *edl.warm.command(script), **QUIET)
    out, err = job.communicate(timeout=patient(100))
    assert job.returncode == 1
    assert "UsageError: --verify-compute: a part of another worker needs its samples" in out + err


def test_without_virtual_workers_it_is_refused(edl) -> None:
    job = edl.start("run", "--verify-compute", "1%", "true")
    assert "--verify-compute 1%: only parts of virtual workers" in job.communicate(timeout=patient(30))[1]
    assert job.returncode == 2
