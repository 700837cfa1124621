"""Water filling against the linear program that it stands for, and the shares that rounds then give."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from edl.cluster.policies.gavel import ROUND, Gavel, filled
from edl.cluster.views import ClusterView, Guess, JobView, Node
from examples import examples


def least_by_linear_program(needs, weights, devices) -> float:
    """The largest level that each job's device-time reaches, for a unit of weight or else all that it needs."""
    jobs = len(needs)
    level = [0.0] * jobs + [-1.0]
    each = np.hstack([-np.eye(jobs), weights[:, None]])  # weight x level - time <= 0
    allowed = np.append(np.ones(jobs), 0.0)
    found = linprog(
        level,
        A_ub=np.vstack([each, allowed]),
        b_ub=np.append(np.zeros(jobs), devices),
        bounds=[*((0, need) for need in needs), (0, None)],
    )
    return float(found.x[-1])


@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([1.0, 2.0, 4.0])), min_size=1, max_size=4),
    st.integers(1, 8),
)
@settings(deadline=None, max_examples=examples(60))
def test_the_least_share_is_the_largest_that_can_be(jobs, devices) -> None:
    needs, weights = np.array([float(need) for need, _ in jobs]), np.array([weight for _, weight in jobs])
    times = filled(needs, weights, devices)
    assert times.sum() == pytest.approx(min(devices, needs.sum()))  # nothing is left while any job needs it
    assert (times <= needs + 1e-9).all()
    assert (times / weights).min() == pytest.approx(least_by_linear_program(needs, weights, devices), abs=1e-6)
    short = times < needs - 1e-9
    if short.any():
        levels = times[short] / weights[short]
        assert levels == pytest.approx(levels[0])  # none has more than another that needs more, too
        assert (times / weights <= levels[0] + 1e-9).all()


def test_over_many_rounds_each_job_has_its_share() -> None:
    """Four devices; jobs of 4, 2, 1 and 1 workers: each has the same device-time, but those of one no more than one."""
    policy, nodes = Gavel(round_s=360.0), (Node("n0", 4),)
    jobs = tuple(
        JobView(name=f"j{at}", submitted=0.0, request=need, smallest=need, largest=need, speed=Guess())
        for at, need in enumerate((4, 2, 1, 1))
    )
    for round_ in range(2000):
        decision = policy.decide(ClusterView(nodes, jobs), round_ * 360.0)
        assert decision.look_again == (round_ + 1) * 360.0
        jobs = tuple(
            msgspec.structs.replace(
                job,
                workers=job.request if job.name in decision.allotments else 0,
                ran=job.ran + 360.0 * (job.name in decision.allotments),
                waited=job.waited + 360.0 * (job.name not in decision.allotments),
                notes=decision.notes.get(job.name, {}),
            )
            for job in jobs
        )
    shares = [job.ran / (job.ran + job.waited) for job in jobs]
    due = filled(np.array([4.0, 2.0, 1.0, 1.0]), np.ones(4), 4) / [4, 2, 1, 1]
    assert due == pytest.approx([0.25, 0.5, 1, 1])
    # The first job runs alone or not at all: a fifth of the rounds is 0.8 of its due, and the last two have as much.
    assert min(np.array(shares) / due) == pytest.approx(0.8, abs=0.01)


def test_within_a_round_who_runs_keeps_its_workers() -> None:
    running = JobView(
        name="old",
        submitted=0.0,
        request=4,
        smallest=4,
        largest=4,
        speed=Guess(),
        workers=4,
        ran=100.0,
        notes={ROUND: 0.0},
    )
    new = JobView(name="new", submitted=100.0, request=4, smallest=4, largest=4, speed=Guess())
    view = ClusterView((Node("n0", 4),), (running, new))
    assert set(Gavel().decide(view, 100.0).allotments) == {"old"}
    assert set(Gavel().decide(view, 400.0).allotments) == {"new"}
