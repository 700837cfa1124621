"""Workers of two processes, over which FSDP2 shards a model: growth, shrinking, and the death of any process."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pace import patient

from edl import client

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "jobs" / "sharded.py"
QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class Run:
    def __init__(
        self,
        edl: Any,
        out: Path,
        workers: int,
        processes: int,
        *flags: str,
        steps: int = 0,
        job: str = "",
        script: Sequence[str] = (),
    ) -> None:
        """`job`: one whose lives have an audit beside their folders."""
        out.mkdir()
        self.edl, self.out, self.name = edl, out, job or out.name
        self.audit = out.parent / "audit" if job else out / "audit"
        (out / "pace").write_text("0" if steps else "0.05")
        arguments = [*script, "--out", str(out), "--pace", str(out / "pace")]
        arguments += ["--steps", str(steps)] if steps else ["--stop", str(out / "stop")]
        several = ["--processes", str(processes)]
        self.job = edl.start(
            "run", "-np", str(workers), *several, "--job", self.name, "--ring", "torch", "--check-weights", "20",
            "--audit", str(self.audit), *flags, *edl.warm.command(SCRIPT), *arguments, **QUIET,
        )  # fmt: skip

    def wait(self, size: int, steps: int = 0) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            status: dict[str, Any] = self.edl.status(self.name)
            assert status["state"] not in {"failed", "finished"}, self.job.communicate()
            if status["state"] == "preempted":  # the life before
                self.edl.look_away(self.name)
                return None
            return status if status["size"] == size and status["step"] >= steps else None

        return self.edl.wait(there, f"{size} workers", timeout_s=180)

    def ends(self) -> dict[str, dict[str, Any]]:
        """What each process has in the end, by the numbers of its worker and its own."""
        out, err = self.job.communicate(timeout=patient(180))
        assert self.job.returncode == 0, out + err
        verified = self.edl("data", "verify", str(self.audit))
        assert verified.returncode == 0, verified.stdout
        found = {path.name.removeprefix("end.")[:3]: json.loads(path.read_text()) for path in self.out.glob("end.*")}
        for name, one in found.items():
            assert one["shards"] == found[f"0.{name[2]}"]["shards"], "workers differ"
        return found

    def ends_after_deaths(self, count: int) -> list[dict[str, Any]]:
        """The events of a job that ends now, in which so many deaths have cost no step."""
        (self.out / "stop").touch()
        (self.out / "pace").write_text("0")
        self.ends()
        events: list[dict[str, Any]] = self.edl.events(self.name)
        assert [one["kind"] for one in events].count("worker_lost") == count
        steps = [one["step"] for one in events if one["kind"] == "scaled"]
        assert steps == sorted(steps), "no step was lost"
        return events

    def processes_of(self, first: int) -> list[int]:
        """All processes of the worker whose first one is `first`, in order."""
        wanted = _variables(first)["EDL_WORKER_ID"]
        found = {}
        for pid, line in self.edl.processes().items():
            variables = _variables(pid)
            if variables.get("EDL_WORKER_ID") == wanted and "edl.daemon" not in line:
                found[int(variables["EDL_LIMB"])] = pid
        return [found[limb] for limb in sorted(found)]


def _variables(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return {}
    return dict(one.partition("=")[::2] for one in text.split("\0"))


def test_workers_of_two_processes_train_as_those_of_one_do_on_the_same_batches(edl, tmp_path) -> None:
    one = Run(edl, tmp_path / "one", 2, 1, steps=40).ends()["0.0"]
    several = Run(edl, tmp_path / "several", 2, 2, steps=40).ends()
    assert sorted(several) == ["0.0", "0.1", "1.0", "1.1"]
    for found in several.values():
        assert found["step"] == one["step"] == 40
        for mine, theirs in zip(found["whole"], one["whole"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)
        assert found["bytes"] <= 0.55 * one["bytes"]


@pytest.mark.parametrize(  # soak: tensor parallel has gradients of its own in each process, as the rows above
    ("way", "processes"),
    [
        ("copies", 2),
        ("stages", 2),
        pytest.param("tensor", 2, marks=pytest.mark.soak),
        pytest.param("tensor", 4, marks=pytest.mark.soak),
        pytest.param("both", 4, marks=pytest.mark.soak),
    ],
)
def test_other_ways_to_divide_a_model_train_the_same(edl, tmp_path, way: str, processes: int) -> None:
    """Copies of it on different samples, stages of a pipeline, tensor parallel over 2, and FSDP2 over that."""
    told = ["--way", way]
    one = Run(edl, tmp_path / "one", 2, 1, steps=30, script=told).ends()["0.0"]
    several = Run(edl, tmp_path / "several", 2, processes, steps=30, script=told).ends()
    if way == "stages":
        wholes = [several[f"{worker}.0"]["whole"] + several[f"{worker}.1"]["whole"] for worker in range(2)]
    else:
        wholes = [found["whole"] for found in several.values()]
    for whole in wholes:
        for mine, theirs in zip(whole, one["whole"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)


@pytest.mark.soak  # any process of any worker is killed: test_workers_grow_shrink_and_die_by_any_of_their_processes
def test_thirty_deaths_at_random_moments_cost_no_step(edl, tmp_path) -> None:
    run = Run(edl, tmp_path / "mortal", 2, 2, "--max-restarts", "40")
    status = run.wait(2, 5)
    drawn = random.Random(int(os.environ.get("EDL_FIRST_SEED", "54")))
    for _ in range(30):
        time.sleep(drawn.uniform(0.0, 0.3))
        victims = run.processes_of(drawn.choice(status["workers"])["pid"])
        os.kill(drawn.choice(victims), signal.SIGKILL)
        run.edl.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in victims), "its end", timeout_s=30)  # noqa: B023
        status = run.wait(2, run.edl.status("mortal")["step"] + 3)
    events = run.ends_after_deaths(30)
    pauses = sorted(round(one["pause_ms"]) for one in events if one["kind"] == "scaled" and one["forced"])
    sys.stdout.write(f"pauses of survivors, in ms: {pauses}\n")


def test_workers_grow_shrink_and_die_by_any_of_their_processes(edl, tmp_path) -> None:
    run = Run(edl, tmp_path / "changing", 2, 2, "--max-restarts", "9")
    run.wait(2, 5)
    with client.Job("changing") as job:
        job.scale(3)
    run.wait(3)
    with client.Job("changing") as job:
        job.scale(2)
    status = run.wait(2)
    for rank, limb in ((1, 1), (0, 0)):
        victim = run.processes_of(status["workers"][rank]["pid"])
        os.kill(victim[limb], signal.SIGKILL)
        run.edl.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in victim), "its end", timeout_s=30)  # noqa: B023
        status = run.wait(2, run.edl.status("changing")["step"] + 5)
    run.ends_after_deaths(2)


def test_a_job_that_is_preempted_goes_on_with_other_numbers_of_processes(edl, tmp_path) -> None:
    """Saved by workers of two processes, then of one, then of four: at its end it is what an undisturbed one is."""
    undisturbed = Run(edl, tmp_path / "undisturbed", 2, 1, steps=60).ends()["0.0"]
    saves = ["--checkpoint", str(tmp_path / "checkpoints")]
    for life, processes in enumerate((2, 1)):
        run = Run(edl, tmp_path / f"saved-{life}", 2, processes, *saves, job="saved")
        run.wait(2, 10)
        with client.Job("saved") as job:
            over = job.preempt(deadline=60.0)
        out, err = run.job.communicate(timeout=patient(60))
        assert run.job.returncode == 75, (over, out, err)
        edl.look_away("saved")
        verified = edl("checkpoint", "verify", str(tmp_path / "checkpoints"))
        assert verified.returncode == 0, verified.stdout + verified.stderr
    last = Run(edl, tmp_path / "saved-2", 2, 4, *saves, steps=60, job="saved")
    found = last.ends()
    assert len(found) == 8
    for one in found.values():
        assert one["step"] == 60
        for mine, theirs in zip(one["whole"], undisturbed["whole"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)


def test_an_interrupted_job_leaves_no_process(edl, tmp_path) -> None:
    run = Run(edl, tmp_path / "interrupted", 1, 2)
    run.wait(1, 3)
    run.job.send_signal(signal.SIGINT)
    run.job.communicate(timeout=patient(60))
    edl.wait_nothing_left()
