"""Published figures, come to again: a simulator that does not is not to be believed."""

from __future__ import annotations

import pytest
from published import JOBS_60, JOBS_195, TRACES, WORKLOAD, needs_published
from simulated import Rule, conditions, figures

from benchmarks.policies_runs import PlannedRun, play
from edl.simulator.simulation_results import Summary
from edl.simulator.trace_files import read_trace

pytestmark = needs_published

POLLUX = {"interval_s": 60.0, "placement": Rule.MOST_FREE}


def of_60(devices: int, policy: str, **parameters: str) -> float:
    mean = figures(read_trace(JOBS_60), policy, conditions(1, devices), **parameters).summary.mean
    assert mean is not None
    return mean


def of_195(policy: str, **parameters: str) -> Summary:
    return figures(read_trace(JOBS_195), policy, conditions(16, 8, 30.0), **parameters).summary


def of_workload(policy: str, **parameters: str) -> Summary:
    return figures(read_trace(WORKLOAD), policy, conditions(16, 4, 30.0, **POLLUX), **parameters).summary


@pytest.mark.parametrize(
    ("policy", "parameters", "mean"),
    [
        ("fifo", {}, 1557),
        ("tiresias", {"limits": "3250,7200", "order": "running-first"}, 715),  # no job falls: the first that fits
        ("srtf", {}, 520),
    ],
)
def test_sixty_jobs_on_eight_devices(policy: str, parameters: dict[str, str], mean: float) -> None:
    assert of_60(8, policy, **parameters) == pytest.approx(mean, abs=1)


def test_sixty_jobs_of_which_none_waits_on_many_devices() -> None:
    assert len({of_60(480, policy) for policy in ("fifo", "backfill", "tiresias", "srtf")}) == 1


def test_tiresias_on_195_jobs_is_what_its_simulator_says() -> None:
    summary = of_195("tiresias", limits="3250,7200", order="running-first")
    assert summary.mean == pytest.approx(27_497, rel=0.01)
    assert summary.median == pytest.approx(15_841, rel=0.02)
    assert summary.p95 == pytest.approx(86_087, rel=0.02)


def test_the_limits_hardly_matter_where_few_wait() -> None:
    assert of_195("tiresias").mean == pytest.approx(27_497, rel=0.01)


def test_elastic_tiresias_on_195_jobs_is_better_by_more_than_a_third() -> None:
    summary = of_195("elastic-tiresias")
    assert summary.mean is not None and summary.mean <= 17_400
    assert summary.deadlines_met > of_195("tiresias").deadlines_met + 50


def test_tiresias_on_a_workload_of_pollux_is_what_their_simulator_says() -> None:
    summary = of_workload("tiresias")
    assert summary.mean == pytest.approx(3_470, rel=0.03)
    assert summary.p95 == pytest.approx(8_494, rel=0.03)
    assert summary.p99 == pytest.approx(46_336, rel=0.03)
    assert summary.makespan == pytest.approx(78_556, rel=0.03)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_optimus_on_a_workload_of_pollux_is_what_their_simulator_says() -> None:
    summary = of_workload("optimus")
    assert summary.mean == pytest.approx(5_302, rel=0.05)
    assert summary.p95 == pytest.approx(20_201, rel=0.05)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_goodput_with_fitted_speeds_is_no_worse_than_pollux() -> None:
    where = str(WORKLOAD.relative_to(TRACES))
    found = play(PlannedRun("goodput", (16, 4), trace=where, interval_s=60.0, cost="30"), TRACES)
    assert found.fitted
    assert found.summary.mean is not None and found.summary.mean <= 2_472
