"""Clusters so small that what must come of them can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import conditions, ends, figures, job, run, trace

from edl.cluster.views import Allotment, ClusterDecision, ClusterView
from edl.errors import ConfigError, EdlError
from edl.simulator.simulated_cluster import Conditions, Faults
from edl.simulator.trace import ChangeCost


class Steered:
    """Gives what it is told to: time -> job -> workers. Each holds until the next."""

    def __init__(self, sizes: dict[float, dict[str, int]], **more: Any) -> None:
        self.sizes, self.more = sizes, more
        self.seen: list[tuple[float, ClusterView]] = []

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        self.seen.append((now, cluster))
        given = self.sizes[max(time for time in self.sizes if time <= now)]
        there = {one.name for one in cluster.jobs}
        later = min((time for time in self.sizes if time > now), default=None)
        allotments = {name: Allotment(size) for name, size in given.items() if name in there and size}
        return ClusterDecision(allotments, **{"look_again": later, **self.more})


LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}


def test_a_job_takes_its_work_over_its_speed() -> None:
    outcome = run(trace(job("a", 10, 2, 100.0)), "fifo", conditions(1, 2))
    assert ends(outcome) == {"a": 110.0}


def test_a_change_keeps_a_job_from_training_and_its_first_start_too() -> None:
    policy = Steered({0: {"a": 2}, 50: {"a": 4}})
    outcome = run(trace(job("a", 0, 2, 200.0, speedup=LINEAR)), policy, conditions(1, 4, 10.0))
    # 10 s of start, 40 s with two workers: 80. 10 s of change, then 120 with four.
    assert ends(outcome) == {"a": 90.0}
    one = outcome.jobs[0]
    assert (one.changes, one.service, one.rested, one.most_tried) == (1, 2 * 50 + 4 * 40, 20 + 40, 4)


def test_newcomers_boot_while_the_others_train() -> None:
    cost = ChangeCost(begin_s=0, resume_s=0, boot_s=10, pause_s=1)
    policy = Steered({0: {"a": 2}, 50: {"a": 4}, 80: {"a": 2}})
    outcome = run(trace(job("a", 0, 2, 320.0, speedup=LINEAR)), policy, Conditions(conditions(1, 4).nodes, cost=cost))
    # By 50: 100. By 60 with the old two: 120. A second of pause, and four from 61 to 80: 196. A pause; two: 62 s more.
    assert ends(outcome) == {"a": pytest.approx(143.0)}


def test_who_boots_goes_on_booting_when_others_come_beside_it() -> None:
    cost = ChangeCost(begin_s=10, resume_s=0, boot_s=4, pause_s=1)
    policy = Steered({0: {"a": 1}, 2: {"a": 2}})
    outcome = run(trace(job("a", 0, 1, 100.0, speedup=LINEAR)), policy, Conditions(conditions(1, 2).nodes, cost=cost))
    assert ends(outcome) == {"a": pytest.approx(60.0)}  # ten seconds from the beginning on, then a hundred with two


def test_what_is_preempted_goes_on_where_it_was() -> None:
    policy = Steered({0: {"a": 1}, 30: {"a": 0, "b": 1}, 50: {"a": 1}})
    cost = ChangeCost(begin_s=0, resume_s=5, boot_s=0, pause_s=0)
    jobs = trace(job("a", 0, 1, 100.0), job("b", 30, 1, 20.0))
    outcome = run(jobs, policy, Conditions(conditions(1, 1).nodes, cost=cost))
    assert ends(outcome) == {"a": 125.0, "b": 50.0}
    assert (outcome.jobs[0].waited, outcome.jobs[0].ran, outcome.jobs[0].changes) == (20.0, 105.0, 2)


def test_a_look_while_a_job_rests_does_not_make_it_rest_longer() -> None:
    policy = Steered({0: {"a": 1}, 5: {"a": 1}, 20: {"a": 0}, 30: {"a": 1}})
    cost = ChangeCost(begin_s=10, resume_s=5, boot_s=0, pause_s=0)
    outcome = run(
        trace(job("a", 0, 1, 100.0), job("b", 20, 1, 1.0)), policy, Conditions(conditions(1, 1).nodes, cost=cost)
    )
    assert ends(outcome)["a"] == 125.0  # ten seconds are trained by 20
    assert outcome.jobs[0].rested == 15.0


def test_in_rounds_devices_are_free_at_the_next_one() -> None:
    jobs = trace(job("a", 5, 1, 30.0), job("b", 6, 1, 30.0))
    outcome = run(jobs, "fifo", conditions(1, 1, interval_s=60.0))
    assert ends(outcome) == {"a": 90.0, "b": 150.0}  # b begins at 120, though a was over at 90
    assert ends(run(jobs, "fifo", conditions(1, 1))) == {"a": 35.0, "b": 65.0}


def test_a_job_that_comes_on_the_round_is_seen_in_it_and_rounds_go_on_after_a_gap() -> None:
    jobs = trace(job("a", 60, 1, 30.0), job("b", 1000, 1, 30.0))
    assert ends(run(jobs, "fifo", conditions(1, 1, interval_s=60.0))) == {"a": 90.0, "b": 1050.0}


def test_a_policy_that_waits_for_nothing_ends_the_simulation() -> None:
    outcome = run(trace(job("a", 0, 1, 1.0), job("b", 0, 1, 1.0)), Steered({0: {"a": 1}}), conditions(1, 2))
    assert ends(outcome) == {"a": 1.0, "b": None}
    rounds = run(
        trace(job("a", 0, 1, 1.0), job("b", 0, 1, 1.0)), Steered({0: {"a": 1}}), conditions(1, 2, interval_s=9)
    )
    assert ends(rounds) == {"a": 10.0, "b": None}


def test_a_node_that_fails_takes_its_workers_and_what_was_trained_since() -> None:
    failures = Faults(mean_s=1e5, length_s=30, much=5)
    begin, end = next(failures.times(7, "FAIL", "n0"))
    work = 2 * begin + 100
    outcome = run(trace(job("a", 0, 2, work, speedup=LINEAR)), "fifo", conditions(1, 2, failures=failures, seed=7))
    # No device is left until the node is back; five seconds of two workers are trained again.
    finished = ends(outcome)["a"]
    assert finished == pytest.approx(end + (100 + 10) / 2)
    assert outcome.jobs[0].waited == pytest.approx(30.0)


def test_a_job_goes_on_with_the_workers_that_other_nodes_have_left() -> None:
    failures = Faults(mean_s=1e5, length_s=1e6, much=0)
    first = {name: next(failures.times(0, "FAIL", name))[0] for name in ("n0", "n1")}
    begin = min(first.values())
    policy = Steered({0: {"a": 4}, begin: {"a": 2}})
    work = 4 * begin + 100
    outcome = run(trace(job("a", 0, 4, work, speedup=LINEAR)), policy, conditions(2, 2, failures=failures))
    assert ends(outcome)["a"] == pytest.approx(begin + 50)
    assert [stretch.workers for stretch in outcome.jobs[0].stretches] == [4, 2]


def test_a_slow_node_slows_the_whole_job_for_a_while() -> None:
    slow = Faults(mean_s=100, length_s=10, much=2)
    begin, _ = next(slow.times(3, "SLOW", "n0"))
    alone = conditions(1, 2, stragglers=slow, seed=3)
    outcome = run(trace(job("a", 0, 2, begin + 7)), "fifo", alone)
    assert ends(outcome)["a"] == pytest.approx(begin + 12)  # ten seconds do the work of five
    assert ends(run(trace(job("a", 0, 2, begin)), "fifo", alone))["a"] == pytest.approx(begin)


def test_the_same_seed_is_the_same_story_and_another_is_not() -> None:
    def story(seed: int) -> dict[str, float | None]:
        jobs = trace(*(job(f"j{at}", 10.0 * at, 1, 500.0) for at in range(10)))
        faults = Faults(mean_s=300, length_s=50, much=20)
        return ends(run(jobs, "backfill", conditions(4, 1, 5.0, failures=faults, stragglers=faults, seed=seed)))

    assert story(1) == story(1) != story(2)


@pytest.mark.parametrize(
    ("sizes", "more", "said"),
    [
        ({"a": 4}, {}, "it gives 4 workers, and there are 2 devices"),
        ({"a": 1}, {}, "it gives 1 workers to a, which may have 2 to 4"),
        ({"a": 2}, {"look_again": 0.0}, "it wants to look again at 0"),
    ],
)
def test_a_policy_that_decides_what_cannot_be_is_told_so(sizes: dict[str, int], more: Any, said: str) -> None:
    jobs = trace(job("a", 0, 2, 1.0, speedup={2: 1.0, 4: 2.0}))
    with pytest.raises(EdlError, match=f"policy Steered at 0 s: {said}"):
        run(jobs, Steered({0: sizes}, **more), conditions(1, 2))


def test_a_job_larger_than_the_cluster_is_named_with_its_row() -> None:
    with pytest.raises(ConfigError, match="row 2: a asks for 5 workers, and the cluster has 4 devices: give it more"):
        run(trace(job("a", 0, 5, 1.0)), "fifo", conditions(2, 2))


def test_what_a_view_says_is_what_has_happened() -> None:
    policy = Steered({0: {"a": 1}, 30: {"a": 2}, 40: {"a": 2}}, notes={"a": {"x": 1.0}})
    run(trace(job("a", 0, 1, 300.0, speedup=LINEAR, deadline=900.0)), policy, conditions(1, 2, 4.0))
    now, view = policy.seen[-2]  # the last one is of a cluster without jobs
    seen = view.jobs[0]
    assert (now, seen.workers, seen.placement, seen.began, seen.changed) == (40, 2, {"n0": 2}, 0, 30)
    assert (seen.service, seen.ran, seen.waited, seen.changes, seen.most_tried) == (30 + 20, 40, 0, 1, 2)
    assert (seen.notes, seen.change_s, seen.deadline, seen.left) == ({"x": 1.0}, 4.0, 900.0, None)


def test_figures_of_two_jobs() -> None:
    jobs = trace(job("a", 0, 1, 100.0, deadline=100.0), job("b", 20, 1, 60.0, deadline=150.0))
    found = figures(jobs, "fifo", conditions(1, 1))
    a, b = found.jobs
    assert (a.completion, b.completion, b.started, b.waited) == (100.0, 140.0, 100.0, 80.0)
    assert (a.deadline_met, b.deadline_met) == (True, False)
    summary = found.summary
    assert (summary.mean, summary.median, summary.makespan, summary.utilization) == (120.0, 120.0, 160.0, 1.0)
    assert (summary.queueing, summary.waiting, summary.deadlines, summary.deadlines_met) == (40.0, 40.0, 2, 1)
    # While b was there, 80 of its 140 s were shared with a: it may expect a device for 60 * (220 / 140) s.
    assert b.slowdown == pytest.approx(140 / (60 * 220 / 140))


def test_what_is_seen_of_a_job_that_waits_is_the_same_until_it_runs_or_is_noted() -> None:
    notes = {"b": {"x": 1.0}}
    policy = Steered({0: {"a": 1}, 30: {"a": 1}, 60: {"a": 1}, 90: {"b": 1}}, notes=notes)
    run(trace(job("a", 0, 1, 500.0), job("b", 10, 1, 20.0)), policy, conditions(1, 1))
    seen = [(now, one) for now, cluster in policy.seen for one in cluster.jobs if one.name == "b"]
    assert [(now, one.waited_by(now), one.notes) for now, one in seen[:4]] == [
        (10.0, 0.0, {}),
        (30.0, 20.0, notes["b"]),
        (60.0, 50.0, notes["b"]),
        (90.0, 80.0, notes["b"]),
    ]
    assert seen[1][1] is seen[2][1] is seen[3][1]


@pytest.mark.parametrize("policy", ["goodput", "tiresias", "elastic-tiresias", "dp", "backfill"])
def test_where_far_more_is_asked_for_than_there_is_jobs_do_not_just_take_turns(policy: str) -> None:
    jobs = [job(f"j{at:03}", 40.0 * at, 1, 60.0 if at % 4 else 1500.0) for at in range(400)]
    outcome = run(trace(*jobs), policy, conditions(1, 4, 10.0))
    assert len(ends(outcome)) == len(jobs)
    assert sum(one.changes for one in outcome.jobs) <= 2 * len(jobs)
