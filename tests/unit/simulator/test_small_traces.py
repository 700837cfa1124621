"""The project's own traces, replayed: what data/README.md says made them, and what each policy makes of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulated import conditions, ends, figures, run
from small_traces import ELASTICFLOW, PLAIN, POLLUX, TIRESIAS, TRACES

from edl.cluster.policies.registry import POLICIES
from edl.simulator.trace import Trace
from edl.simulator.trace_files import read_trace

ALL = (PLAIN, TIRESIAS, ELASTICFLOW, POLLUX)


def test_the_lines_in_the_page_make_these_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (TRACES.parent / "README.md").read_text().partition("## How the traces were made")[2]
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], {})
    made = {str(path.relative_to("traces")): path.read_text() for path in Path("traces").rglob("*.csv")}
    assert made == {str(path.relative_to(TRACES)): path.read_text() for path in TRACES.rglob("*") if path.is_file()}


def in_order(jobs: Trace, devices: int) -> dict[str, float]:
    """First come, first served on one node, worked out with the times at which each device is free."""
    free, begun, found = [0.0] * devices, 0.0, {}
    for job in jobs.jobs:
        free.sort()
        begun = max(begun, job.submitted, free[job.request - 1])
        found[job.name] = begun + job.course.total
        free[: job.request] = [found[job.name]] * job.request
    return found


@pytest.mark.parametrize("devices", [8, 16, 40])
def test_first_come_first_served(devices: int) -> None:
    jobs = read_trace(TIRESIAS)
    assert ends(run(jobs, "fifo", conditions(1, devices))) == pytest.approx(in_order(jobs, devices))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(TRACES)))
def test_each_policy_plays_each_trace_to_its_end(path: Path, policy: str) -> None:
    jobs = read_trace(path)
    outcome = run(jobs, policy, conditions(4, 4, 30.0))
    assert all(job.finished is not None and job.finished > job.job.submitted for job in outcome.jobs)


def test_jobs_that_may_grow_are_done_sooner() -> None:
    """On more devices than they ask for, by the tables of the two formats that have some."""
    for path in (ELASTICFLOW, POLLUX):
        jobs = read_trace(path)
        means = {policy: figures(jobs, policy, conditions(8, 4, 1.0)).summary.mean for policy in ("fifo", "goodput")}
        assert 0 < (means["goodput"] or 0.0) < 0.9 * (means["fifo"] or 0.0)
