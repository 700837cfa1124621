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
from pace import patient, set_pace
from torch import nn

from edl import client
from edl.torch import load_checkpoint

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
        gpus: str = "",
    ) -> None:
        """`job`: one whose lives have an audit beside their folders. `gpus`: of the machine, made up."""
        out.mkdir()
        self.edl, self.out, self.name = edl, out, job or out.name
        self.audit = out.parent / "audit" if job else out / "audit"
        (out / "pace").write_text("0" if steps else "0.05")
        arguments = [*script, "--out", str(out), "--pace", str(out / "pace")]
        arguments += ["--steps", str(steps)] if steps else ["--stop", str(out / "stop")]
        several = ["--processes", str(processes)]
        self.job = edl.start(
            "run", "-np", str(workers), *several, "--job", self.name, "--ring", "torch", "--check-weights", "20",
            "--audit", str(self.audit), *flags, *edl.warm.command(SCRIPT), *arguments,
            **{**QUIET, "CUDA_VISIBLE_DEVICES": gpus},
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

    def rests(self) -> int:
        """Wait until no script makes steps; return the newest step."""
        steps = [-1]

        def stand() -> bool:
            steps.append(self.edl.status(self.name)["step"])
            time.sleep(0.5)
            return steps[-1] == steps[-2]

        self.edl.wait(stand, "all scripts to wait")
        return steps[-1]

    def ends(self) -> dict[str, dict[str, Any]]:
        """What each process has in the end, by the numbers of its worker and its own."""
        out, err = self.job.communicate(timeout=patient(180))
        self.told = err
        assert self.job.returncode == 0, out + err
        verified = self.edl("data", "verify", str(self.audit))
        assert verified.returncode == 0, verified.stdout
        found = {path.name.removeprefix("end.")[:3]: json.loads(path.read_text()) for path in self.out.glob("end.*")}
        for name, one in found.items():
            assert one["shards"] == found[f"0.{name[2]}"]["shards"], "workers differ"
        return found

    def is_preempted(self, size: int, checkpoints: Path) -> int:
        """Let it train a little and be preempted; return the step, of all lives, at which it is saved."""
        self.wait(size, 10)
        return self.ends_preempted(checkpoints)

    def ends_preempted(self, checkpoints: Path) -> int:
        with client.Job(self.name) as job:
            over = job.preempt(deadline=60.0)
        out, self.told = self.job.communicate(timeout=patient(60))
        assert self.job.returncode == 75, (over, out, self.told)
        self.edl.look_away(self.name)
        verified = self.edl("checkpoint", "verify", str(checkpoints), "--json")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        return int(json.loads(verified.stdout)["checkpoints"][0]["step"])

    def ends_after_deaths(self, count: int) -> list[dict[str, Any]]:
        """The events of a job that ends now, in which so many deaths have cost no step."""
        (self.out / "stop").touch()
        set_pace(self.out / "pace", "0")
        self.ends()
        events: list[dict[str, Any]] = self.edl.events(self.name)
        assert [one["kind"] for one in events].count("worker_lost") == count
        steps = [one["step"] for one in events if one["kind"] == "scaled"]
        assert steps == sorted(steps), "no step was lost"
        return events

    def gpus_of(self, status: dict[str, Any]) -> list[str]:
        """What the processes of each worker see."""
        found = []
        for worker in status["workers"]:
            [seen] = {_variables(pid)["CUDA_VISIBLE_DEVICES"] for pid in self.processes_of(worker["pid"])}
            found.append(seen)
        return found

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


@pytest.mark.soak  # of two, one and four: test_a_job_that_is_preempted_goes_on_with_other_numbers_of_processes
def test_workers_of_two_processes_train_as_those_of_one_do_on_the_same_batches(edl, tmp_path) -> None:
    one = Run(edl, tmp_path / "one", 2, 1, steps=40).ends()["0.0"]
    several = Run(edl, tmp_path / "several", 2, 2, steps=40).ends()
    assert sorted(several) == ["0.0", "0.1", "1.0", "1.1"]
    for found in several.values():
        assert found["step"] == one["step"] == 40
        for mine, theirs in zip(found["whole"], one["whole"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)
        assert found["bytes"] <= 0.55 * one["bytes"]


# soak: tensor parallel has gradients of its own in each process, as the rows above; stages that are preempted, below,
# end as those of one process do, too
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "processes"),
    [
        ("copies", 2),
        pytest.param("stages", 2, marks=pytest.mark.soak),
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


def test_copies_that_begin_differently_train_nothing(edl, tmp_path) -> None:
    run = Run(edl, tmp_path / "unlike", 2, 2, steps=30, script=["--way", "copies", "--unlike"])
    out, err = run.job.communicate(timeout=patient(180))
    assert run.job.returncode == 1, out + err
    assert "edl.Optimizer: 0.weight differs between processes 0 and 1 of this worker, which train it together" in err


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


@pytest.mark.slow
def test_workers_grow_shrink_and_die_by_any_of_their_processes(edl, tmp_path) -> None:
    run = Run(edl, tmp_path / "changing", 2, 2, "--max-restarts", "9", gpus="0,1,2,3")
    assert sorted(run.gpus_of(run.wait(2, 5))) == ["0,1", "2,3"]
    with client.Job("changing") as job:
        job.scale(3)
    three = run.wait(3)
    assert sorted(run.gpus_of(three)) == ["0,1", "0,1", "2,3"]
    all_of = {worker["id"]: run.processes_of(worker["pid"]) for worker in three["workers"]}
    with client.Job("changing") as job:
        job.scale(2)
    run.wait(2)
    edl.wait(lambda: len(run.edl.status("changing")["workers"]) == 2, "the leaver is listed no longer", timeout_s=60)
    status = run.wait(2)
    [leaver] = all_of.keys() - {worker["id"] for worker in status["workers"]}
    run.edl.wait(  # until then a newcomer would share its GPUs
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in all_of[leaver]), "the leaver's end", timeout_s=60
    )
    for rank, limb in ((1, 1), (0, 0)):
        victim = run.processes_of(status["workers"][rank]["pid"])
        os.kill(victim[limb], signal.SIGKILL)
        run.edl.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in victim), "its end", timeout_s=30)  # noqa: B023
        status = run.wait(2, run.edl.status("changing")["step"] + 5)
        assert sorted(run.gpus_of(status)) == ["0,1", "2,3"], "a replacement has those of the one that it replaces"
    run.ends_after_deaths(2)
    assert run.told.count("one more worker takes GPUs 0,1, which another worker has") == 1


@pytest.mark.slow
def test_a_job_that_is_preempted_goes_on_with_other_numbers_of_processes(edl, tmp_path) -> None:
    """Saved by workers of two processes, then of one, then of four: at its end it is what an undisturbed one is."""
    undisturbed = Run(edl, tmp_path / "undisturbed", 2, 1, steps=60).ends()["0.0"]
    saves = ["--checkpoint", str(tmp_path / "checkpoints")]
    for life, processes in enumerate((2, 1)):
        Run(edl, tmp_path / f"saved-{life}", 2, processes, *saves, job="saved").is_preempted(
            2, tmp_path / "checkpoints"
        )
    last = Run(edl, tmp_path / "saved-2", 2, 4, *saves, steps=60, job="saved")
    found = last.ends()
    assert len(found) == 8
    for one in found.values():
        assert one["step"] == 60
        assert one["bytes"] <= 0.3 * undisturbed["bytes"]
        for what in ("whole", "averages"):  # which are registered, and sharded as the parameters are
            for mine, theirs in zip(one[what], undisturbed[what], strict=True):
                assert mine == pytest.approx(theirs, abs=1e-6)


@pytest.mark.slow
def test_a_job_is_saved_while_its_scripts_are_busy_between_two_updates(edl, tmp_path) -> None:
    """As with a long evaluation: the copies are made beside it."""
    waits, checkpoints = tmp_path / "wait", tmp_path / "checkpoints"
    saves = ["--checkpoint", str(checkpoints)]
    run = Run(edl, tmp_path / "busy", 2, 2, *saves, script=["--wait", str(waits)])
    run.wait(2, 5)
    waits.touch()
    step = run.rests()
    assert run.ends_preempted(checkpoints) >= step > 0
    assert "has no part in checkpoint" not in run.told


@pytest.mark.slow
def test_a_pipeline_that_is_preempted_goes_on_at_other_numbers_of_workers(edl, tmp_path) -> None:
    """Stages of two processes, saved at 2 workers and at 1, and ended at 3. What is saved is the whole model."""
    told, policy = ["--way", "stages", "--samples", "12"], ["--batch-policy", "fixed-global"]
    one = Run(edl, tmp_path / "one", 2, 1, *policy, steps=60, script=[*told, "--trace"]).ends()["0.0"]
    checkpoints = tmp_path / "checkpoints"
    saves = [*policy, "--checkpoint", str(checkpoints)]
    for life, workers in enumerate((2, 1)):
        run = Run(edl, tmp_path / f"piped-{life}", workers, 2, *saves, job="piped", script=told)
        step = run.is_preempted(workers, checkpoints)
        whole = nn.Sequential(nn.Sequential(nn.Linear(16, 32), nn.GELU()), nn.Sequential(nn.Linear(32, 3)))
        load_checkpoint(checkpoints, whole)
        for mine, theirs in zip(whole.parameters(), one["trace"][str(step)], strict=True):
            assert mine.flatten().tolist() == pytest.approx(theirs, abs=1e-6)
    found = Run(edl, tmp_path / "piped-2", 3, 2, *saves, steps=60, job="piped", script=told).ends()
    for worker in range(3):
        stages = found[f"{worker}.0"], found[f"{worker}.1"]
        assert [stage["step"] for stage in stages] == [60, 60]
        for mine, theirs in zip(stages[0]["whole"] + stages[1]["whole"], one["whole"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)


def test_an_interrupted_job_leaves_no_process(edl, tmp_path) -> None:
    run = Run(edl, tmp_path / "interrupted", 1, 2)
    run.wait(1, 3)
    run.job.send_signal(signal.SIGINT)
    run.job.communicate(timeout=patient(60))
    edl.wait_nothing_left()


@pytest.mark.slow
def test_workers_that_lose_different_processes_at_once_save_what_they_have(edl, tmp_path) -> None:
    """No worker is whole then. Together they hold the model, and the job goes on with it: in its next life, at once."""
    flags = ("--checkpoint", str(tmp_path / "c"), "--max-restarts", "1")
    wait = tmp_path / "wait"
    run = Run(edl, tmp_path / "job", 2, 2, *flags, script=("--wait", str(wait)))
    run.wait(2, 5)
    wait.touch()
    assert run.rests() > 0
    status = edl.status("job")
    first, second = (run.processes_of(worker["pid"]) for worker in status["workers"])
    for pid in (first[0], second[1]):
        os.kill(pid, signal.SIGKILL)

    def lives_again() -> dict[str, Any] | None:
        status: dict[str, Any] = edl.status("job")
        if status["state"] == "failed":  # the life before
            edl.look_away("job")
        return status if status.get("resumed") and status["step"] >= 3 else None

    edl.wait(lambda: not any(map(os.path.exists, map("/proc/{}".format, (*first, *second)))), "the end of all")
    wait.unlink()
    status = edl.wait(lives_again, "its next life", timeout_s=60)
    (run.out / "stop").touch()
    set_pace(run.out / "pace", "0")
    run.ends()
    events = edl.events("job")
    begun = [one for one in events if one["kind"] == "checkpoint_begun"]
    assert [one["why"] for one in begun][:1] == ["remnants"], events
    lost = [one["made"] for one in events if one["kind"] == "worker_lost"]
    assert [lost[0], lost[1]] == [begun[0]["step"]] * 2
    assert status["base"] == begun[0]["step"]
