"""Workers that come to differ in a real job: it heals, or it fails with the reason (I15)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JOBS = Path(__file__).parent / "jobs"


def diverged(edl, job: str) -> list[dict]:
    return [event for event in edl.events(job) if event["kind"] == "diverged"]


def test_a_job_of_torch_takes_the_state_of_the_majority(edl, tmp_path):
    flags = ("-np", "3", "--on-divergence", "heal", "--check-weights", "10")
    command = edl.warm.command(JOBS / "torch_diverging.py")
    done = edl("run", *flags, "--job", "d", *command, "--out", str(tmp_path), "--large", timeout_s=200)
    assert done.returncode == 0, done.stderr
    outside, flipped = diverged(edl, "d")
    assert (outside["first"], outside["after_step"], outside["equal_step"]) == ("3.bias", 10, 0)
    assert (flipped["after_step"], flipped["equal_step"]) == (20, 11), (
        "the answer is looked at a step later, and healed"
    )
    assert flipped["first"] in {"0.weight", "state of 0.weight['exp_avg_sq']"}  # it may have come to the weight already
    for event in (outside, flipped):
        assert (event["action"], event["majority"], len(event["workers"])) == ("heal", True, 1)
        assert event["like"] not in event["workers"]
    assert outside["workers"] == flipped["workers"]
    assert len({(tmp_path / str(rank)).read_text() for rank in range(3)}) == 1


def test_a_script_that_breaks_off_before_the_answer_is_looked_at_is_no_success(edl, tmp_path):
    command = edl.warm.command(JOBS / "torch_diverging.py")
    flags = ("-np", "2", "--check-weights", "5")  # equal after step 5, and after step 10 not any more
    done = edl("run", *flags, "--job", "d", *command, "--out", str(tmp_path), "--last", "10", timeout_s=200)
    assert done.returncode == 1, done.stderr
    assert "the workers' states differed after step 10, the last one of its script" in done.stderr


def test_a_job_of_tensorflow_fails_and_says_what_differs(edl):
    done = edl(
        *("run", "-np", "2", "--check-weights", "10", "--job", "d", *edl.warm.command(JOBS / "tf_diverging.py")),
        timeout_s=200,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert done.returncode == 1, done.stderr
    (event,) = diverged(edl, "d")
    assert (event["first"], event["after_step"], event["equal_step"]) == ("sequential/last/bias", 20, 10)
    assert (event["action"], event["majority"], event["differing"]) == ("fail", False, 1)
    (end,) = [event for event in edl.events("d") if event["kind"] == "job_failed"]
    assert "last/bias" in end["reason"] and event["workers"][0] in end["reason"]
    assert done.stderr.count("the workers' states differ after step 20") >= 2  # every worker ends with the reason
