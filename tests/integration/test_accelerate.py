"""Accelerate on edl: a loop as its documentation has it, through growth, a kill, and a preemption."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import Job
from test_paths import check
from whole_story import tell

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SCRIPT = "accelerate_elastic.py"


@pytest.mark.soak
def test_a_loop_grows_loses_a_worker_and_shrinks(edl: Any, tmp_path: Any) -> None:
    script = [SCRIPT, "--way", "loop", "--accumulate", "2"]
    job = Job(edl, tmp_path / "out", 2, script=script, EDL_MAX_RESTARTS="3", EDL_MAX_NP="3")
    check(edl, job)
    assert (job.out / "model.pt").exists()


@pytest.mark.slow
def test_the_whole_story_ends_where_accelerate_alone_does(edl: Any, tmp_path: Any) -> None:
    results, alone, epochs, _ = tell(edl, tmp_path, SCRIPT)
    assert len(results) == 2 and results[0]["state"] == results[1]["state"]
    assert results[0]["loss"] == pytest.approx(alone["loss"], abs=1e-6)
    for result in results:
        _, *counted = result["epochs"]  # the first may be that of a rehearsal
        assert counted and counted == list(range(epochs - len(counted), epochs))
