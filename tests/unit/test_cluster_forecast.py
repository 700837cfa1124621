"""What real jobs cost is read off their stories, and the simulator makes of it when they would be over."""

from __future__ import annotations

import pytest

from benchmarks.cluster import JobFacts, facts_of, forecast, workload
from benchmarks.real_cluster import Line
from edl.cluster.queue.queue_entries import JobEntry, JobPhase, QueueEvent, Submission

LINE = Line("a", 0.0, "digits", 2, 1, 4, 1, 0.1)


def _event(ts: float, kind: str, **details: int) -> QueueEvent:
    return QueueEvent(ts, kind, "a", "", dict(details))


def _printed(first: float, step: int, count: int, step_s: float, size: int) -> list[tuple[float, int, int]]:
    return [(first + at * step_s, step + at, size) for at in range(count)]


def test_costs_are_read_off_a_jobs_story_and_its_lines() -> None:
    story = (
        _event(1.0, "decision", workers=2, was=0),
        _event(1.2, "job_starting"),
        _event(9.0, "decision", workers=4, was=2),
        _event(20.0, "decision", workers=0, was=4),
        _event(30.0, "decision", workers=2, was=0),
        _event(31.0, "job_resuming"),
    )
    printed = [
        *_printed(5.0, 1, 100, 0.1, 2),
        *_printed(15.5, 101, 40, 0.2, 4),  # its first step took 0.6 s
        *_printed(37.0, 141, 11, 0.1, 2),
    ]
    job = JobEntry(Submission("a", ("t",), "/", "u", 0.5), phase=JobPhase.FINISHED, story=story, ended=40.0)
    facts = facts_of(LINE, job, printed)
    assert facts.begin_s == pytest.approx(4.0)
    assert facts.resumes_s == pytest.approx((7.0,))
    assert facts.end_s == pytest.approx(2.0)
    assert facts.steps_s == pytest.approx({2: 0.1, 4: 0.2})
    assert facts.boots_s == pytest.approx((6.5,))
    assert facts.pauses_s[:1] == pytest.approx((0.4,))
    assert facts.submitted == pytest.approx(0.5)


def test_jobs_that_wait_for_each_other_are_foretold_with_what_each_costs() -> None:
    def facts(name: str, submitted: float, begin_s: float) -> JobFacts:
        return JobFacts(name, "digits", 0.1, 2, (2, 1, 2), submitted, begin_s, 1.0, (), (), (), {2: 0.1})

    found = forecast("fifo", {}, [facts("a", 100.0, 4.0), facts("b", 101.0, 6.0)], 2)
    steps = 29  # of an epoch with two workers of 32 samples: 28.08, and the last one is a whole one
    a = 4 + 1 + 2 * steps * 0.1
    assert found.makespan == pytest.approx(a + 6 + 1 + 2 * steps * 0.1)
    assert found.mean == pytest.approx((a + found.makespan - 1) / 2)


def test_a_forecast_lets_jobs_grow_as_the_live_policy_would() -> None:
    alone = JobFacts("a", "digits", 0.1, 20, (1, 1, 4), 0.0, 5.0, 1.0, (), (2.0,), (0.1,), {1: 0.1, 2: 0.1, 4: 0.1})
    fixed = forecast("fifo", {}, [alone], 4)
    grown = forecast("elastic-tiresias", {"dwell_s": "1"}, [alone], 4)
    assert grown.mean is not None
    assert fixed.mean is not None
    assert grown.mean < 0.6 * fixed.mean
    assert grown.changes > 0


def test_the_same_jobs_come_under_each_policy() -> None:
    lines = workload(24, 5, 6.0, seed=1)
    assert lines == workload(24, 5, 6.0, seed=1)
    assert {line.model for line in lines} == {"digits", "sonnets"}
    assert all(1 <= line.least <= line.np <= line.most <= 5 for line in lines)
    assert len({(line.np, line.epochs, line.step_s) for line in lines}) > 10
