"""Workers that come to differ in a real job: it heals, or it fails with the reason (I15)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JOBS = Path(__file__).parent / "jobs"


def diverged(edl, job: str) -> list[dict]:
    return [event for event in edl.events(job) if event["kind"] == "diverged"]


class Growing:
    """A job of two workers that another one joins, with one of the faults of its script."""

    def __init__(self, edl, folder: Path, script: str, fault: str, *more: str, after_step: int = 2) -> None:
        self._edl, self._until = edl, folder / "until"
        command = edl.warm.command(JOBS / script)
        options = ("--until", str(self._until), "--fault", fault)
        flags = ("-np", "2", "--max-np", "3", "--job", "d", *more)
        self.launcher = edl.start("run", *flags, *command, *options, TF_CPP_MIN_LOG_LEVEL="3")
        edl.wait(lambda: edl.status("d")["step"] > after_step, "it trains", timeout_s=120)
        assert edl("scale", "d", "3").returncode == 0

    def lost(self) -> list[dict]:
        return [event for event in self._edl.events("d") if event["kind"] == "worker_lost"]

    def joined(self) -> int:
        """The step after which the newcomer has come."""
        return next(one["step"] for one in self._edl.events("d") if one["kind"] == "scaled")

    def end(self, step: int = 0) -> subprocess.CompletedProcess[str]:
        """All workers after the same step: this one, or one to come."""
        new = self._until.with_suffix(".new")
        new.write_text(str(step or self._edl.status("d")["step"] + 60))
        new.rename(self._until)
        out, err = self.launcher.communicate(timeout=120)
        return subprocess.CompletedProcess([], self.launcher.returncode, out, err)


def test_a_job_of_torch_takes_the_state_of_the_majority(edl, tmp_path):
    flags = ("-np", "3", "--on-divergence", "heal", "--check-weights", "10")
    command = edl.warm.command(JOBS / "torch_diverging.py")
    done = edl("run", *flags, "--job", "d", *command, "--out", str(tmp_path), "--large", timeout_s=200)
    assert done.returncode == 0, done.stderr
    outside, flipped = diverged(edl, "d")
    assert (outside["first"], outside["after_step"], outside["equal_step"]) == ("3.bias", 10, 4)
    assert (flipped["after_step"], flipped["equal_step"]) == (20, 16)
    assert flipped["first"] in {"0.weight", "state of 0.weight['exp_avg_sq']"}  # it may have come to the weight already
    for event in (outside, flipped):
        assert (event["action"], event["majority"], len(event["workers"])) == ("heal", True, 1)
        assert event["like"] not in event["workers"]
    assert outside["workers"] == flipped["workers"]
    assert len({(tmp_path / str(rank)).read_text() for rank in range(3)}) == 1


@pytest.mark.parametrize("flags", [(), ("--ring", "torch")], ids=["horovod", "torch"])
def test_scripts_that_break_off_in_states_that_differ_are_no_success(edl, tmp_path, flags: tuple[str, ...]):
    """Between two comparisons: equal after step 4, rank 1 differs from step 7 on, and step 10 is the last."""
    command = edl.warm.command(JOBS / "torch_diverging.py")
    done = edl(
        *("run", "-np", "2", *flags, "--job", "d", *command, "--out", str(tmp_path), "--last", "10"), timeout_s=200
    )
    assert done.returncode == 1, done.stderr
    (event,) = diverged(edl, "d")
    assert (event["first"], event["action"], len(event["workers"])) == ("3.bias", "fail", 1)
    assert "the workers' states differ at the end of their scripts" in done.stderr
    assert event["workers"][0] in done.stderr


def test_scripts_that_end_after_different_steps_are_no_success(edl, tmp_path):
    command = edl.warm.command(JOBS / "torch_ending.py")
    done = edl("run", "-np", "2", "--job", "d", *command, "--how", "apart", "--out", str(tmp_path), timeout_s=200)
    assert done.returncode == 1, done.stderr
    (event,) = diverged(edl, "d")
    assert event["first"] == "the number of steps"


@pytest.mark.parametrize(("how", "ring"), [("without 20", "horovod"), ("without 40", "torch")])
def test_an_update_that_one_worker_leaves_out_between_the_last_comparison_and_the_end_is_no_success(
    edl, tmp_path, how: str, ring: str
):
    """Where updates are not regular it is a mini-batch behind; the last of all it makes anew."""
    command = [*edl.warm.command(JOBS / "torch_ending.py"), "--how", how, "--out", str(tmp_path)]
    done = edl("run", "-np", "2", "--ring", ring, "--job", "d", *command, timeout_s=200)
    assert done.returncode == 1, done.stderr
    (event,) = diverged(edl, "d")
    assert event["action"] == "fail"
    assert "the workers' states differ at the end of their scripts" in done.stderr


@pytest.mark.parametrize("how", ["halved", "saved", "exit"])
def test_what_a_script_does_after_all_its_data_is_its_own(edl, tmp_path, how: str):
    command = edl.warm.command(JOBS / "torch_ending.py")
    done = edl("run", "-np", "2", "--job", "d", *command, "--how", how, "--out", str(tmp_path), timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert not diverged(edl, "d")


def test_a_job_of_tensorflow_fails_and_says_what_differs(edl):
    done = edl(
        *("run", "-np", "2", "--check-weights", "10", "--job", "d", *edl.warm.command(JOBS / "tf_diverging.py")),
        timeout_s=200,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert done.returncode == 1, done.stderr
    (event,) = diverged(edl, "d")
    assert (event["first"], event["after_step"], event["equal_step"]) == ("sequential/last/bias", 20, 16)
    assert (event["action"], event["majority"], event["differing"]) == ("fail", False, 1)
    (end,) = [event for event in edl.events("d") if event["kind"] == "job_failed"]
    assert "last/bias" in end["reason"] and event["workers"][0] in end["reason"]
    assert done.stderr.count("the workers' states differ after step 20") >= 2  # every worker ends with the reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "fault", "words"),
    [
        ("torch_newcomer_differs.py", "rate", "learning rate of group 0 is 0."),
        ("keras_newcomer_differs.py", "rate", "learning_rate is 0."),
        pytest.param("torch_newcomer_differs.py", "schedule", "a schedule", marks=pytest.mark.soak),
    ],
)
def test_a_newcomer_that_differs_goes_and_the_others_train_on(edl, tmp_path, script: str, fault: str, words: str):
    """A soak: what another schedule makes of the rate shows some steps later, perhaps in weights, and is found so."""
    job = Growing(edl, tmp_path, script, fault)
    edl.wait(job.lost, "the newcomer is gone", timeout_s=120)
    (event, *_) = diverged(edl, "d")
    (lost, *_) = job.lost()
    assert (lost["cause"], lost["worker"]) == ("differed", event["workers"][0])
    found = [one for one in diverged(edl, "d") if one["action"] == "part"]
    assert words in found[0]["told"]
    assert found[0]["after_step"] < job.joined() + 64 or fault == "schedule"  # by the comparison of the sixteenth step
    done = job.end()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("edl: the workers' states differ after step") >= 1
    assert edl.status("d")["state"] == "finished"


def test_an_update_of_gradients_from_several_mini_batches_is_refused_before_a_newcomer_can_differ(edl, tmp_path):
    command = edl.warm.command(JOBS / "torch_newcomer_differs.py")
    options = ("--until", str(tmp_path / "until"), "--fault", "enumerate")
    done = edl("run", "-np", "2", "--job", "d", *command, *options, timeout_s=120)
    assert done.returncode == 1, done.stderr
    assert "its gradients are a sum over mini-batches" in done.stderr
    assert edl.status("d")["step"] < 2


@pytest.mark.slow
def test_a_newcomer_that_ends_in_another_state_says_nothing_against_the_others(edl, tmp_path):
    """It differs from its twenty-fifth mini-batch on, after the comparison of the sixteenth step; the next one would be
    that of the sixty-fourth.
    """
    job = Growing(edl, tmp_path, "torch_newcomer_differs.py", "late", "--check-weights", "100000", after_step=24)
    edl.wait(lambda: edl.status("d")["size"] == 3, "three workers", timeout_s=120)
    done = job.end(job.joined() + 50)
    assert done.returncode == 0, done.stderr
    (event,) = diverged(edl, "d")
    assert (event["action"], len(event["workers"])) == ("part", 1)
    assert "which joined after step" in event["told"]
    assert edl.status("d")["state"] == "finished"
    assert "edl: the workers' states differ at the end of their scripts" in done.stderr


@pytest.mark.slow
def test_a_value_that_becomes_a_tensor_on_some_workers_is_each_ones_own(edl, tmp_path):
    job = Growing(edl, tmp_path, "torch_newcomer_differs.py", "float")
    edl.wait(lambda: edl.status("d")["size"] == 3, "three workers", timeout_s=120)
    step = edl.status("d")["step"]
    edl.wait(lambda: edl.status("d")["step"] > step + 70, "the early comparisons are made", timeout_s=60)
    done = job.end()
    assert done.returncode == 0, done.stderr
    assert not diverged(edl, "d")
