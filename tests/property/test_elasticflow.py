"""Deadlines: what is promised is kept, what could be kept by one job alone is promised, and no more is given for it."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.cluster.policies.elasticflow_policy import ADMITTED, ElasticFlow
from edl.cluster.views import ClusterView, JobView, Node, Table
from examples import examples


def job_of(name, speeds, deadline, left, **fields):
    given = {"request": 1, "smallest": 1, "largest": len(speeds), "submitted": 0.0}
    return JobView(
        name=name, speed=Table(dict(enumerate(speeds, start=1))), deadline=deadline, left=left, **{**given, **fields}
    )


@st.composite
def jobs_with_deadlines(draw):
    """Up to four jobs; speeds rise with size, each worker adding less or more than the one before."""
    return some_jobs(np.random.default_rng(draw(st.integers(0, 1 << 30))), draw(st.integers(1, 4)))


def some_jobs(rng, count):
    jobs = []
    for at in range(count):
        speeds = np.cumsum(rng.uniform(0.05, 1.0, size=8)).tolist()
        jobs.append(job_of(f"j{at}", speeds, float(rng.uniform(100, 2000)), float(rng.uniform(10, 3000))))
    return jobs


def run(policy, jobs, devices, seconds=2000.0, step=5.0):
    """When each of them ended, and which were promised; asked anew every step, changes cost nothing."""
    ended, promised = {}, {}
    for tick in range(int(seconds / step)):
        now = tick * step
        decision = policy.decide(ClusterView((Node("n0", devices),), tuple(jobs)), now)
        assert sum(one.workers for one in decision.allotments.values()) <= devices
        after = []
        for job in jobs:
            promised.setdefault(job.name, decision.notes[job.name][ADMITTED])
            assert decision.notes[job.name][ADMITTED] == promised[job.name]
            workers = decision.allotments[job.name].workers if job.name in decision.allotments else 0
            done = job.speed.rates(8, 8).progress[workers - 1] * step if workers else 0.0
            if done >= job.left:
                ended[job.name] = now + step
                continue
            notes = decision.notes[job.name]
            after.append(msgspec.structs.replace(job, left=job.left - done, workers=workers, notes=notes))
        jobs = after
        if not jobs:
            break
    return ended, promised


@given(jobs_with_deadlines(), st.integers(1, 8))
@settings(deadline=None, max_examples=examples(60))
def test_what_is_promised_is_kept_but_for_a_slot(jobs, devices) -> None:
    expect_kept(jobs, devices)


@pytest.mark.parametrize("seed", [135, 499, 1056, 1075, 1635])
def test_a_share_that_falls_as_a_job_gets_on_breaks_no_promise(seed) -> None:
    """By the smallest share at each moment it would hold its workers for longer, and another would miss them."""
    rng = np.random.default_rng(seed)
    count, devices = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    expect_kept(some_jobs(rng, count), devices)


def expect_kept(jobs, devices) -> None:
    ended, promised = run(ElasticFlow(slots=32, margin=0.05), jobs, devices)
    for job in jobs:
        if promised[job.name]:
            late = ended.get(job.name, np.inf) - job.deadline
            assert late <= max(other.deadline for other in jobs) / 32 + 10  # a slot, and two steps of this test


@given(jobs_with_deadlines(), st.integers(1, 8))
@settings(deadline=None, max_examples=examples(60))
def test_one_job_is_promised_if_any_size_would_do(jobs, devices) -> None:
    job = jobs[0]
    policy = ElasticFlow(margin=0.0)
    decision = policy.decide(ClusterView((Node("n0", devices),), (job,)), 0.0)
    speeds = job.speed.rates(8, 8).progress
    sizes = sorted({*(2**k for k in range(4) if 2**k < devices), devices})
    could = any(speeds[size - 1] * job.deadline >= job.left * (1 + 1e-6) for size in sizes)
    could_not = all(speeds[size - 1] * job.deadline <= job.left * (1 - 1e-6) for size in sizes)
    assert decision.notes["j0"][ADMITTED] == could or not (could or could_not)


@given(jobs_with_deadlines())
@settings(deadline=None, max_examples=examples(40))
def test_constant_sizes_that_would_do_are_enough_for_the_first_deadline(jobs) -> None:
    """If each could have its smallest sufficient constant size at once, all are promised."""
    sizes = (1, 2, 4, 8)
    fit = [
        combination
        for combination in itertools.product(sizes, repeat=len(jobs))
        if sum(combination) <= 8
        and all(
            job.speed.rates(8, 8).progress[size - 1] * job.deadline >= job.left * 1.03
            for job, size in zip(jobs, combination, strict=True)
        )
    ]
    notes = ElasticFlow(slots=64).decide(ClusterView((Node("n0", 8),), tuple(jobs)), 0.0).notes
    if fit:
        assert all(notes[job.name][ADMITTED] for job in jobs)


def test_a_job_that_could_not_keep_its_deadline_takes_no_promise_from_others() -> None:
    first = job_of("first", [1.0, 2.0], 100.0, 150.0)
    second = job_of("second", [1.0, 2.0], 100.0, 150.0, submitted=1.0)
    notes = ElasticFlow().decide(ClusterView((Node("n0", 2),), (first, second)), 1.0).notes
    assert (notes["first"][ADMITTED], notes["second"][ADMITTED]) == (1.0, 0.0)


def test_what_is_left_goes_where_it_is_worth_most() -> None:
    """One needs a device to end in time, and gains little from more; the one without a deadline gains much."""
    calm = job_of("calm", [1.0, 1.1, 1.15, 1.2], 1000.0, 900.0)
    best_effort = job_of("eager", [1.0, 2.0, 3.0, 4.0], None, None)
    allotments = ElasticFlow().decide(ClusterView((Node("n0", 5),), (calm, best_effort)), 0.0).allotments
    assert {name: one.workers for name, one in allotments.items()} == {"calm": 1, "eager": 4}


def test_it_must_be_told_how_much_is_left() -> None:
    with pytest.raises(ValueError, match="elasticflow must know how much work is left, and j0 does not say"):
        ElasticFlow().decide(ClusterView((Node("n0", 1),), (job_of("j0", [1.0], 10.0, None),)), 0.0)


def test_no_promise_leaves_the_first_best_effort_job_none() -> None:
    waiting = job_of("waiting", [1.0, 2.0], None, None)
    new = job_of("new", [1.0, 2.0], 100.0, 150.0, submitted=5.0)
    decision = ElasticFlow().decide(ClusterView((Node("n0", 2),), (waiting, new)), 5.0)
    assert decision.notes["new"][ADMITTED] == 0.0
    assert decision.allotments["waiting"].workers >= 1
