"""Hugging Face's Trainer on edl: through growth, a kill, and a preemption; one state everywhere, and no sample lost."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import Job
from test_paths import check, kill, of_rank
from whole_story import tell

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SCRIPT = "transformers_elastic.py"
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.mark.soak
def test_a_trainer_grows_loses_a_worker_and_shrinks(edl: Any, tmp_path: Any) -> None:
    script = [SCRIPT, "--way", "trainer", "--accumulate", "2"]
    edl.environ |= OFFLINE
    job = Job(edl, tmp_path / "out", 2, script=script, EDL_MAX_RESTARTS="3", EDL_MAX_NP="3")
    check(edl, job)
    for result in job.results():
        assert result["global_step"] == result["steps"] == result["seen"][-1]
        assert result["seen"] == list(
            range(result["seen"][0], result["steps"] + 1)
        )  # each step once, beyond rehearsals
        assert len(result["saved"]) == 2  # by one worker, of all epochs the last ones


@pytest.mark.soak
def test_a_death_in_an_evaluation_tells_no_callback_anything_twice(edl: Any, tmp_path: Any) -> None:
    edl.environ |= OFFLINE
    script = [SCRIPT, "--way", "trainer", "--evaluating", "0.1"]
    job = Job(edl, tmp_path / "out", 2, script=script, EDL_MAX_RESTARTS="3")
    job.wait_size(2)
    for rank in (1, 0):
        victim = of_rank(job, rank)
        evaluates = job.out / f"evaluating-{victim['pid']}"
        evaluates.unlink(missing_ok=True)
        edl.wait(evaluates.exists, "the victim evaluates", timeout_s=60)
        kill(edl, job, victim)
        job.wait_size(2)
        job.wait_steps(3)
    job.finish()
    job.expect_equal_models()
    job.expect_exactly_once()
    for result in job.results():
        for told in ("seen", "evaluated", "ended"):
            assert result[told] == sorted(set(result[told])), (told, result[told])


@pytest.mark.slow
def test_the_whole_story_ends_where_the_trainer_alone_does(edl: Any, tmp_path: Any) -> None:
    edl.environ |= OFFLINE
    results, alone, epochs, empty = tell(edl, tmp_path, SCRIPT)
    assert len(results) == 2 and results[0]["state"] == results[1]["state"]
    assert results[0]["loss"] == pytest.approx(alone["loss"], abs=1e-6)
    assert results[0]["global_step"] == results[0]["steps"] - empty == alone["global_step"]
    assert results[0]["state"][1] == epochs
    numbers = results[0]["ended"]
    assert len(numbers) > 1 and numbers == results[1]["ended"] == list(range(numbers[0], epochs + 1))
