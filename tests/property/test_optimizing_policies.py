"""What the optimizing policies decide, against every choice there is, and over many rounds."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.cluster.knapsack import admitted, ladder
from edl.cluster.policies.elasticflow_policy import ElasticFlow
from edl.cluster.policies.gavel import Gavel
from edl.cluster.policies.goodput import Goodput, ThroughputOptimizer
from edl.cluster.views import Aim, ClusterView, JobView, Node, Provenance, Rates, Table
from examples import examples

ALL = (ThroughputOptimizer(), Goodput(), Gavel(), ElasticFlow())
OPTIMIZERS = (ThroughputOptimizer(), Goodput())


def cluster_of(devices, jobs, each=4):
    full, rest = divmod(devices, each)
    sizes = [each] * full + ([rest] if rest else [])
    return ClusterView(tuple(Node(f"n{at}", size) for at, size in enumerate(sizes)), tuple(jobs))


def job_of(name, speeds, **fields):
    given = {"request": 1, "smallest": 1, "largest": len(speeds), "most_tried": 64, "submitted": 0.0, "left": 100.0}
    speed = Table(dict(enumerate(speeds, start=1)), batch=32)
    return JobView(name=name, speed=speed, **{**given, **fields})


@st.composite
def clusters(draw, most=4):
    """Up to so many jobs on up to eight devices, some of them running."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    devices, left, jobs = draw(st.integers(1, 8)), 8, []
    left = devices
    for at in range(draw(st.integers(1, most))):
        smallest = int(rng.integers(1, 3)) if devices > 1 else 1
        largest = int(rng.integers(smallest, 9))
        speeds = np.cumsum(rng.uniform(-0.3, 1.0, size=8)) + 1
        workers = int(rng.integers(0, min(largest, left) + 1))
        workers = workers if workers >= smallest else 0
        left -= workers
        ran = float(rng.uniform(0, 5000)) if workers else 0.0
        jobs.append(
            job_of(
                f"j{at}",
                np.maximum(speeds, 0.1).tolist(),
                smallest=smallest,
                largest=largest,
                request=int(rng.integers(smallest, largest + 1)),
                submitted=float(rng.integers(0, 3)),
                workers=workers,
                ran=ran,
                waited=float(rng.uniform(0, 100)),
                service=ran * workers,
                change_s=30.0,
                deadline=float(rng.uniform(10, 5000)) if rng.random() < 0.6 else None,
                left=float(rng.uniform(1, 3000)),
            )
        )
    return cluster_of(devices, jobs)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: type(policy).__name__)
@given(cluster=clusters(most=6), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=examples(40))
def test_every_decision_can_be_and_depends_on_no_order(policy, cluster, seed) -> None:
    decision = policy.decide(cluster, 100.0)
    by_name = {job.name: job for job in cluster.jobs}
    assert sum(one.workers for one in decision.allotments.values()) <= cluster.devices
    for name, one in decision.allotments.items():
        assert by_name[name].smallest <= one.workers <= by_name[name].largest
        assert bool(one.reason) == (one.workers != by_name[name].workers)
    jobs = list(cluster.jobs)
    random.Random(seed).shuffle(jobs)
    assert policy.decide(msgspec.structs.replace(cluster, jobs=tuple(jobs)), 100.0) == decision


@given(cluster=clusters(most=6))
@settings(deadline=None, max_examples=examples(40))
def test_the_largest_stand_first_and_are_placed_first(cluster) -> None:
    sizes = [one.workers for one in Goodput().decide(cluster, 100.0).allotments.values()]
    assert sizes == sorted(sizes, reverse=True)


def worth_of(policy, job, size):
    """Written once more, in a plain way, from the words at the top of the policy's file."""
    rates = job.speed.rates(8, 4)
    speed = rates.progress if isinstance(policy, Goodput) else rates.throughput
    kept = 1.0
    if job.workers not in {0, size}:
        ahead = policy.settle_s + job.ran
        kept = (1 - policy.hesitation) * (ahead - job.change_s) / ahead
    worth = (speed[size - 1] / speed[job.smallest - 1] * kept) ** policy.power / policy.power
    if isinstance(policy, Goodput):
        worth *= (policy.service_s / (policy.service_s + job.service)) ** policy.young
    return worth


@pytest.mark.parametrize("policy", OPTIMIZERS, ids=lambda policy: type(policy).__name__)
@given(cluster=clusters())
@settings(deadline=None, max_examples=examples(60))
def test_no_choice_of_sizes_is_worth_more(policy, cluster) -> None:
    decided = {name: one.workers for name, one in policy.decide(cluster, 100.0).allotments.items()}
    within = [job for job in cluster.jobs if job.name in decided]
    may = []
    for job in within:
        most = min(job.largest, cluster.devices)
        rungs = ladder(most, cluster.devices_per_node).tolist()
        may.append(sorted({size for size in [*rungs, job.smallest, most, job.workers] if job.smallest <= size <= most}))
    most_worth = max(
        sum(worth_of(policy, job, size) for job, size in zip(within, sizes, strict=True))
        for sizes in itertools.product(*may)
        if sum(sizes) <= cluster.devices
    )
    worth = sum(worth_of(policy, job, decided[job.name]) for job in within)
    assert worth == pytest.approx(most_worth)
    left = cluster.devices - sum(job.smallest for job in within)
    assert all(job.smallest > left for job in cluster.jobs if job.name not in decided)  # more would not fit


def after(job, seconds, one, now, notes):
    """The job some time later, in which it had what was decided."""
    workers = one.workers if one else 0
    changed = workers != job.workers
    return msgspec.structs.replace(
        job,
        workers=workers,
        ran=job.ran + (seconds if workers else 0),
        waited=job.waited + (0 if workers else seconds),
        service=job.service + workers * seconds,
        changes=job.changes + changed,
        changed=now if changed else job.changed,
        most_tried=max(job.most_tried, workers),
        notes=notes,
    )


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: type(policy).__name__)
@given(cluster=clusters(most=4))
@settings(deadline=None, max_examples=examples(25))
def test_nothing_changes_where_nothing_has_happened(policy, cluster) -> None:
    """Asked again at once, it decides the same; and jobs that all have workers do not change round after round."""
    now, jobs = 100.0, cluster.jobs
    for _ in range(2):
        decision = policy.decide(msgspec.structs.replace(cluster, jobs=jobs), now)
        jobs = tuple(
            after(job, 0.0, decision.allotments.get(job.name), now, decision.notes.get(job.name, {})) for job in jobs
        )
    again = policy.decide(msgspec.structs.replace(cluster, jobs=jobs), now)
    assert {name: one.workers for name, one in again.allotments.items()} == {
        job.name: job.workers for job in jobs if job.workers
    }


@pytest.mark.parametrize("policy", OPTIMIZERS, ids=lambda policy: type(policy).__name__)
def test_sizes_do_not_swing(policy) -> None:
    """Four jobs for an hour: few changes, though their service grows apart."""
    curves = [[size**power for size in range(1, 9)] for power in (0.5, 0.6, 0.7, 0.8)]
    jobs = tuple(job_of(f"j{at}", curve, change_s=0.2, most_tried=0) for at, curve in enumerate(curves))
    for round_ in range(60):
        decision = policy.decide(cluster_of(16, jobs), round_ * 60.0)
        jobs = tuple(after(job, 60.0, decision.allotments.get(job.name), round_ * 60.0, {}) for job in jobs)
    assert sum(job.changes for job in jobs) <= 4 * 5


@pytest.mark.parametrize("policy", [Goodput(), Gavel()], ids=lambda policy: type(policy).__name__)
def test_none_waits_without_end_though_newcomers_never_end(policy) -> None:
    """Three devices, a new job every ten minutes, of which each would run for ever: each one gets its turn."""
    jobs: tuple[JobView, ...] = ()
    waiting, longest = Counter[str](), Counter[str]()
    for round_ in range(600):
        now = round_ * 60.0
        if round_ % 10 == 0 and len(jobs) < 8:
            smallest = 1 + (round_ // 10) % 2
            more = job_of(
                f"j{round_:03d}", [1.0] * 3, submitted=now, smallest=smallest, request=smallest, change_s=30.0
            )
            jobs = (*jobs, more)
        decision = policy.decide(cluster_of(3, jobs), now)
        for job in jobs:
            waiting[job.name] = 0 if job.name in decision.allotments else waiting[job.name] + 60
            longest[job.name] = max(longest[job.name], waiting[job.name])
        jobs = tuple(
            after(job, 60.0, decision.allotments.get(job.name), now, decision.notes.get(job.name, {})) for job in jobs
        )
    assert all(job.ran > 600 for job in jobs)
    assert max(longest.values()) < 600 * 60 / 2, "one has not run in the last half of that time"


def test_those_who_come_first_are_admitted_first() -> None:
    jobs = [job_of(f"j{at}", [1.0] * 8, smallest=3, submitted=float(at)) for at in range(4)]
    assert [job.name for job in admitted(jobs, 7)] == ["j0", "j1"]
    assert set(ThroughputOptimizer().decide(cluster_of(7, jobs[::-1]), 0.0).allotments) == {"j0", "j1"}


class OfEachAim:
    """Two workers and a batch that says which was asked for."""

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        batch = {Aim.PROGRESS: 64, Aim.THROUGHPUT: 512, Aim.GIVEN: 32}[aim]
        ones = np.ones(most)
        return Rates(ones, ones, np.full(most, batch), np.zeros(most), (Provenance.MEASURED,) * most)


@pytest.mark.parametrize(
    ("policy", "batch"),
    [
        (ThroughputOptimizer(), 512),
        (ThroughputOptimizer(fixed_batch=True), 32),
        (Goodput(), 64),
        (Goodput(fixed_batch=True), 32),
    ],
)
def test_each_takes_the_batch_that_it_aims_at(policy, batch) -> None:
    job = msgspec.structs.replace(job_of("a", [1.0]), speed=OfEachAim())
    assert policy.decide(cluster_of(4, [job]), 0.0).allotments["a"].batch == batch
