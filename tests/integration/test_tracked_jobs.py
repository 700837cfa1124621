"""A real job that grows, loses rank 0 and lives on, as MLflow has it: one run, and no step of it twice."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(400)]

LATE = 40  # steps at most that rank 0 has made, and not written when it dies: as many as its thread is behind


def kill(job: Job, *ranks: int) -> None:
    """All, where none are named."""
    workers = {worker["rank"]: worker["pid"] for worker in job.status()["workers"]}
    for rank in ranks or [rank for rank in workers if rank is not None]:
        os.kill(workers[rank], signal.SIGKILL)


def through_growth_death_and_another_life(edl: Any, tmp_path: Path, **environ: str) -> tuple[Job, int]:
    """The job, which is over, and how many steps it has made in all lives."""
    job = Job(
        edl,
        tmp_path,
        2,
        None,
        ("torch_elastic.py", "--track", "MlflowCallback"),
        EDL_CHECKPOINT=str(tmp_path / "ck"),
        EDL_CHECKPOINT_EVERY="20steps",
        EDL_MAX_RESTARTS="2",
        **environ,
    )
    job.wait_size(2)
    job.wait_steps(30)
    job.scale(3)
    job.wait_size(3)
    job.wait_steps(30)
    kill(job, 0)
    edl.wait(lambda: [one for one in job.events() if one["kind"] == "scaled" and one["forced"]], "the ring without it")
    job.wait_steps(30)
    kill(job)
    edl.wait(lambda: "life_begun" in [one["kind"] for one in job.events()], "another life", 60)
    edl.look_away("s")
    edl.wait(lambda: edl.status("s")["state"] == "running" and edl.status("s")["step"] > 30, "its steps", 90)
    events = job.finish()
    base = next(one["from_step"] for one in events if one["kind"] == "life_begun")
    return job, base + max(result["step"] for result in job.results()) - 1


def test_mlflow_has_one_run_with_no_step_twice_and_none_missing_but_where_rank_0_died(
    edl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"MLFLOW_TRACKING_URI": f"file:{tmp_path / 'runs'}", "MLFLOW_ALLOW_FILE_STORE": "true"}
    job, newest = through_growth_death_and_another_life(edl, tmp_path, **variables)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(variables["MLFLOW_TRACKING_URI"])
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert (run.info.run_name, run.info.status, run.data.tags["edl.job"]) == ("s", "FINISHED", "s")
    losses, sizes = (client.get_metric_history(run.info.run_id, name) for name in ("loss", "size"))
    steps = [one.step for one in losses]
    assert steps == sorted(set(steps)) == [one.step for one in sizes]
    assert (steps[0], steps[-1]) == (1, newest)
    assert {one.value for one in sizes} >= {2.0, 3.0}
    forced = [one["step"] for one in job.events() if one["kind"] == "scaled" and one["forced"]]
    begun = [one["from_step"] for one in job.events() if one["kind"] == "life_begun"]
    gaps = [(before + 1, after) for before, after in pairwise(steps) if after != before + 1]
    for first, after in gaps:  # a planned change leaves none
        assert any(first >= died - LATE and after <= died + 2 for died in [*forced, *begun]), (first, after)
