"""Jobs whose scripts have optimizers that `edl.Optimizer` was not given: averaged all the same, or one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JOBS = Path(__file__).parent / "jobs"


@pytest.mark.slow
def test_all_optimizers_that_a_keras_model_has_are_wrapped_by_the_callback(edl, tmp_path):
    command = edl.warm.command(JOBS / "keras_two_optimizers.py")
    done = edl("run", "-np", "2", "--job", "k", *command, str(tmp_path), timeout_s=200, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.returncode == 0, done.stderr
    assert len({(tmp_path / str(rank)).read_text() for rank in range(2)}) == 1


def test_what_an_optimizer_trains_that_is_not_wrapped_ends_the_job_with_its_name(edl):
    command = edl.warm.command(JOBS / "torch_unwrapped.py")
    done = edl("run", "-np", "2", "--check-weights", "3", "--job", "u", *command, timeout_s=200)
    assert done.returncode == 1, done.stderr
    (event,) = [event for event in edl.events("u") if event["kind"] == "diverged"]
    assert event["first"].startswith("parameter 0 of SGD, which edl.Optimizer was not given")


def test_what_the_script_says_is_each_workers_own_may_differ(edl):
    command = edl.warm.command(JOBS / "torch_unwrapped.py")
    done = edl("run", "-np", "2", "--check-weights", "3", "--job", "l", *command, "--local", timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert not [event for event in edl.events("l") if event["kind"] == "diverged"]


@pytest.mark.parametrize(("ring", "flags", "code"), [("horovod", (), 1), ("torch", ("--averages",), 0)])
def test_what_is_trained_by_hand_is_equal_or_ends_the_job(edl, ring: str, flags: tuple[str, ...], code: int):
    command = edl.warm.command(JOBS / "torch_by_hand.py")
    done = edl("run", "-np", "2", "--ring", ring, "--job", "h", *command, *flags, timeout_s=200)
    assert done.returncode == code, done.stderr
    found = [event["first"] for event in edl.events("h") if event["kind"] == "diverged"]
    assert len(found) == code and all("changes by its gradients without an optimizer" in one for one in found)
