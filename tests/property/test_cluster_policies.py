"""Policies of a cluster against naive twins, and what is true of each of them whatever the jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from simulated import conditions, job, nodes, run, trace

from edl.cluster.placement import place
from edl.cluster.policies import registry
from edl.cluster.policies.tiresias_policy import ElasticTiresias, Queues, gittins, noted
from edl.cluster.queue.device_assignment import yielded
from edl.cluster.views import Aim, ClusterDecision, ClusterPolicy, ClusterView, JobView, PerDevice, Provenance, Rates
from edl.simulator.course import Iterations
from edl.simulator.trace import TrueSpeed

QUEUES = Queues((57_600.0,), 8)
NOW = 3e6
FALLEN = {"queue": 1.0, "since": 7.0, "base": 0.0, "ran": 0.0, "waited": 0.0, "urgent": 0.0, "due": 0.0}


def speed_of(curve: Mapping[int, float]) -> TrueSpeed:
    return TrueSpeed(Iterations(1.0, curve, 0), 0.0, 0)


@st.composite
def views(draw: st.DrawFn, most_jobs: int = 6, most_each: int = 1) -> ClusterView:
    """Clusters in the midst of their work: what runs fits."""
    there = nodes(draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    free = sum(node.devices for node in there)
    jobs: list[JobView] = []
    sizes: dict[str, int] = {}
    for at in range(draw(st.integers(0, most_jobs))):
        each = draw(st.integers(1, most_each))
        smallest = draw(st.integers(1, 3))
        request = draw(st.integers(smallest, 5))
        largest = draw(st.integers(request, 8))
        rate, curve = 0.0, {}
        for size in range(1, largest + 1):
            rate = max(0.05, rate + draw(st.sampled_from([1.0, 0.8, 0.5, 0.2, 0.0, -0.2])))
            curve[size] = rate
        workers = draw(st.sampled_from([0, smallest, request, largest]))
        workers = workers if workers * each <= free else 0
        free -= workers * each
        sizes[f"j{at}"] = workers * each
        ran = draw(st.sampled_from([0.0, 100.0, 5e3, 1e5])) if not workers else draw(st.sampled_from([1.0, 5e3, 1e5]))
        waited = draw(st.sampled_from([0.0, 50.0, 4e3, 2e6]))
        speed = speed_of(curve) if each == 1 else PerDevice(speed_of(curve), each)
        jobs.append(
            JobView(
                name=f"j{at}", submitted=float(at), request=request * each, smallest=smallest * each,
                largest=largest * each, speed=speed, each=each, priority=draw(st.sampled_from([0, 0, 0, 1])),
                left=draw(st.floats(1, 1e5)), workers=workers * each,
                service=ran * max(1, workers or request) * each, ran=ran,
                waited=waited, began=1.0 if ran else None, changed=draw(st.sampled_from([1.0, NOW])) if ran else None,
                most_tried=(workers or (request if ran else 0)) * each,
                notes=draw(st.sampled_from([{}, FALLEN])),
            )
        )  # fmt: skip
    placed = place(there, {}, sizes, each={one.name: one.each for one in jobs})
    return ClusterView(there, tuple(msgspec.structs.replace(one, placement=placed.get(one.name, {})) for one in jobs))


def sizes_of(decision: ClusterDecision) -> dict[str, int]:
    return {name: allotment.workers for name, allotment in decision.allotments.items() if allotment.workers}


# ------------------------------------------------------------------------------------------- what is true of each


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@given(view=views())
def test_none_gives_more_than_there_is_or_than_a_job_may_have(name: str, view: ClusterView) -> None:
    decision = registry.build(name).decide(view, NOW)
    sizes = sizes_of(decision)
    assert sum(sizes.values()) <= view.devices
    for one in view.jobs:
        assert sizes.get(one.name, one.smallest) in range(one.smallest, one.largest + 1)
    assert sizes.keys() <= {one.name for one in view.jobs}
    assert decision.look_again is None or decision.look_again > NOW


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@given(view=views(most_each=3))
def test_each_gives_whole_workers_of_several_devices(name: str, view: ClusterView) -> None:
    decision = registry.build(name).decide(view, NOW)
    sizes = sizes_of(decision)
    for found in (sizes, sizes_of(ClusterDecision(yielded(view, decision.allotments)))):
        assert sum(found.values()) <= view.devices
        for one in view.jobs:
            size = found.get(one.name, one.smallest)
            assert one.smallest <= size <= one.largest
            assert size % one.each == 0, f"{size} devices for workers of {one.each}"


def test_the_speed_of_workers_of_several_devices_rises_by_whole_workers() -> None:
    inner = speed_of({1: 1.0, 2: 1.8, 3: 2.4}).rates(3, 2)
    found = PerDevice(speed_of({1: 1.0, 2: 1.8, 3: 2.4}), 2).rates(7, 4)
    assert list(found.progress) == [0.0, *(inner.progress[at] for at in (0, 0, 1, 1, 2, 2))]
    assert list(found.throughput) == [0.0, *(inner.throughput[at] for at in (0, 0, 1, 1, 2, 2))]
    assert found.provenance == tuple(inner.provenance[at] for at in (0, 0, 0, 1, 1, 2, 2))


@pytest.mark.parametrize("name", ["dp", "elastic-tiresias", "elasticflow", "goodput", "optimus"])
def test_a_job_of_workers_of_several_devices_grows_on_an_idle_cluster(name: str) -> None:
    speed = PerDevice(speed_of({1: 1.0, 2: 1.9, 3: 2.7, 4: 3.4}), 2)
    alone = JobView("a", 0.0, 2, 2, 8, speed, each=2, left=1e5, deadline=NOW + 1e6)
    for devices in (6, 7):
        assert sizes_of(registry.build(name).decide(ClusterView(nodes(1, devices), (alone,)), NOW)) == {"a": 6}


@pytest.mark.parametrize("name", ["dp", "goodput"])
def test_no_policy_offers_a_part_of_a_worker(name: str) -> None:
    """Of two nodes of four devices a worker of three leaves one on each."""
    alone = JobView("a", 0.0, 3, 3, 9, PerDevice(speed_of({1: 1.0, 2: 1.9, 3: 2.7}), 3), each=3, most_tried=9)
    assert sizes_of(registry.build(name).decide(ClusterView(nodes(2, 4), (alone,)), NOW)) == {"a": 6}


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@given(view=views(), order=st.randoms(use_true_random=False))
def test_none_depends_on_the_order_of_a_dictionary(name: str, view: ClusterView, order: Any) -> None:
    def shuffled(known: Mapping[str, Any]) -> dict[str, Any]:
        return dict(order.sample(list(known.items()), len(known)))

    other = tuple(
        msgspec.structs.replace(one, notes=shuffled(one.notes), placement=shuffled(one.placement)) for one in view.jobs
    )
    policy = registry.build(name)
    first, second = policy.decide(view, NOW), policy.decide(ClusterView(view.nodes, other), NOW)
    assert first == second
    assert list(first.allotments) == list(second.allotments)


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@given(view=views())
def test_what_is_decided_once_stays_while_nothing_happens(name: str, view: ClusterView) -> None:
    """No worker comes or goes for nothing: no flapping."""
    check_that_it_stays(registry.build(name), view)


def check_that_it_stays(policy: ClusterPolicy, view: ClusterView) -> None:
    decision = policy.decide(view, NOW)
    for _ in range(3):
        view = applied(view, decision)
        again = policy.decide(view, NOW)
        assert sizes_of(again) == sizes_of(decision)
        decision = again


def applied(view: ClusterView, decision: ClusterDecision) -> ClusterView:
    """A moment later."""
    sizes = sizes_of(decision)
    placed = place(view.nodes, {one.name: one.placement for one in view.jobs if one.workers}, sizes)
    jobs = []
    for one in view.jobs:
        size = sizes.get(one.name, 0)
        jobs.append(
            msgspec.structs.replace(
                one, workers=size, placement=placed.get(one.name, {}), notes=decision.notes.get(one.name, {}),
                began=one.began if one.began is not None or not size else NOW,
                changed=one.changed if size == one.workers else NOW, most_tried=max(one.most_tried, size),
            )
        )  # fmt: skip
    return ClusterView(view.nodes, tuple(jobs))


# ------------------------------------------------------------------------------------------------------ naive twins


def naive_fifo(view: ClusterView) -> dict[str, int]:
    found = {one.name: one.workers for one in view.jobs if one.workers}
    for one in sorted(view.jobs, key=lambda one: (-one.priority, one.submitted)):
        free = view.devices - sum(found.values())
        if one.workers:
            found[one.name] = max(one.workers, min(one.request, one.workers + free))
    for one in sorted(view.jobs, key=lambda one: (-one.priority, one.submitted)):
        if not one.workers:
            if one.request <= view.devices - sum(found.values()):
                found[one.name] = one.request
            elif one.request <= view.devices:
                return found
    return found


def naive_backfill(view: ClusterView) -> dict[str, int]:
    found = naive_fifo(ClusterView(view.nodes, tuple(one for one in view.jobs if one.workers)))
    for one in sorted(view.jobs, key=lambda one: (-one.priority, one.submitted)):
        if not one.workers:
            if one.request <= view.devices - sum(found.values()):
                found[one.name] = one.request
            elif one.waited >= 3600 and one.request <= view.devices:
                return found
    return found


def naive_walk(view: ClusterView, key: Callable[[JobView], Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in sorted(view.jobs, key=key):
        if one.request + sum(found.values()) <= view.devices:
            found[one.name] = one.request
    return found


def naive_srtf(view: ClusterView) -> dict[str, int]:
    def left(one: JobView) -> float:
        return one.left / one.speed.rates(8, 4).progress[one.request - 1]

    return naive_walk(view, lambda one: (-one.priority, left(one), not one.workers))


def naive_tiresias(view: ClusterView) -> dict[str, int]:
    def queue(one: JobView) -> tuple[int, float]:
        fallen = one.service >= 57_600 - 1e-6
        if one.notes:
            return 1, 7.0
        return (1, NOW) if fallen else (0, one.submitted)

    return naive_walk(view, lambda one: (queue(one)[0], -one.priority, queue(one)[1]))


def naive_optimus(view: ClusterView) -> dict[str, int]:
    """Device by device, all jobs compared anew each time."""
    found: dict[str, int] = {}
    for one in sorted(view.jobs, key=lambda one: -one.priority):
        if one.smallest + sum(found.values()) <= view.devices:
            found[one.name] = one.smallest

    def gain(one: JobView) -> float:
        progress = one.speed.rates(one.largest, 4).progress
        size = found[one.name]
        return 0.0 if size >= one.largest else float(one.left / progress[size - 1] - one.left / progress[size])

    while sum(found.values()) < view.devices:
        best = max((one for one in view.jobs if one.name in found), key=gain, default=None)
        if best is None or gain(best) <= 0:
            break
        found[best.name] += 1
    return found


TWINS = {
    "fifo": naive_fifo, "backfill": naive_backfill, "srtf": naive_srtf, "tiresias": naive_tiresias,
    "optimus": naive_optimus,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TWINS))
@given(view=views())
def test_a_policy_decides_what_its_naive_twin_does(name: str, view: ClusterView) -> None:
    assert sizes_of(registry.build(name).decide(view, NOW)) == TWINS[name](view)


def naive_gittins(sample: list[float], service: float) -> float:
    left = [one - service for one in sample if one > service]
    return max(
        (sum(one <= spend for one in left) / sum(min(one, spend) for one in left) for spend in left), default=0.0
    )


@given(sample=st.lists(st.floats(1, 1e4), min_size=2, max_size=8), service=st.floats(0, 1e4))
def test_an_index_of_gittins_is_the_best_chance_for_what_is_spent(sample: list[float], service: float) -> None:
    assume(all(one <= service or one - service > 1e-6 for one in sample))
    assert gittins(np.sort(np.array(sample)), service) == pytest.approx(naive_gittins(sample, service))


# ------------------------------------------------------------------------------------------------- elastic-tiresias


@given(view=views())
def test_elastic_tiresias_leaves_no_device_idle_that_a_job_could_use(view: ClusterView) -> None:
    policy = ElasticTiresias(dwell_s=0)
    sizes = sizes_of(policy.decide(view, NOW))
    free = view.devices - sum(sizes.values())
    for one in view.jobs:
        size = sizes.get(one.name, 0)
        speedup = np.concatenate([[0.0], one.speed.rates(one.largest, 4).progress])
        if free and size and size < one.largest:
            assert (speedup[size + 1] - speedup[size]) / speedup[1] < policy.floor + 1e-9
        if not size:
            assert (
                policy.smallest(one) > free or speedup[policy.smallest(one)] / policy.smallest(one) < policy.floor * 2
            )


@given(view=views())
def test_elastic_tiresias_gives_less_than_a_request_only_where_jobs_wait(view: ClusterView) -> None:
    policy = ElasticTiresias()
    sizes = sizes_of(policy.decide(view, NOW))
    usual = [one.waited_by(NOW) for one in view.jobs if one.running and not one.notes.get("queue", 0.0)]
    passed_s = max(policy.passed_s, 8 * sum(usual) / len(usual) if usual else 0.0)

    def rank(one: JobView) -> tuple[float, ...]:
        known = noted(one, Queues((57_600.0,), 8, passed_s), NOW)
        return known["queue"], -one.priority, not (one.workers or known["urgent"]), known["since"]

    rigid = naive_walk(view, rank)
    if not any(0 < one.workers < one.request for one in view.jobs):
        for name, size in rigid.items():
            assert sizes[name] >= size


@given(view=views(most_jobs=8))
def test_when_many_wait_those_that_have_had_much_shrink(view: ClusterView) -> None:
    policy = ElasticTiresias(pending=0, floor=100)  # nothing expands
    sizes = sizes_of(policy.decide(view, NOW))
    plain = sizes_of(ElasticTiresias(pending=100, floor=100).decide(view, NOW))
    assert len(plain) == len(view.jobs) or len(sizes) >= len(plain)
    for one in view.jobs:
        if sizes.get(one.name, one.request) < one.request and one.workers not in range(1, one.request):
            assert sizes[one.name] == policy.smallest(one) and noted(one, QUEUES, NOW)["queue"] == 1


class Told:
    """A speed that is fitted."""

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        sizes = np.arange(1, most + 1, dtype=float)
        return Rates(sizes, sizes, np.zeros(most, dtype=np.int64), np.zeros(most), (Provenance.FITTED,) * most)


@given(request=st.integers(1, 4), tried=st.integers(0, 8))
def test_where_a_speed_is_not_measured_a_job_grows_to_twice_what_it_had(request: int, tried: int) -> None:
    one = JobView(
        name="a", submitted=0, request=request, smallest=1, largest=64, speed=Told(), most_tried=tried, workers=tried,
        placement={"n0": tried} if tried else {}, began=0.0 if tried else None, changed=0.0 if tried else None,
    )  # fmt: skip
    assert sizes_of(ElasticTiresias().decide(ClusterView(nodes(1, 64), (one,)), NOW)) == {"a": max(request, 2 * tried)}


def a_job(name: str, curve: Mapping[int, float], workers: int, request: int = 1) -> JobView:
    return JobView(
        name=name, submitted=0, request=request, smallest=1, largest=max(curve), speed=speed_of(curve), workers=workers,
        placement={"n0": workers} if workers else {}, ran=1e4, service=1e4, began=0.0, changed=0.0, most_tried=workers,
    )  # fmt: skip


def test_of_equal_gains_that_of_fewest_devices_is_taken() -> None:
    """Two more are worth as much to j1, each, as one more is to it and to j3. Once j1 had both, j3 was worth more."""
    line = {size: float(size) for size in range(1, 4)}
    shorter = {1: 1.0, 2: 2.0}
    jobs = (a_job("j0", shorter, 0, 2), a_job("j1", line, 1, 2), a_job("j2", line, 0, 3), a_job("j3", shorter, 1))
    view = ClusterView(nodes(2, 3), jobs)
    assert sizes_of(ElasticTiresias().decide(view, NOW)) == {"j0": 2, "j1": 2, "j3": 2}
    check_that_it_stays(ElasticTiresias(), view)


def test_a_dip_behind_which_a_job_is_faster_is_looked_over() -> None:
    curve = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 3.0, 6: 3.2, 7: 3.4, 8: 7.0}
    view = ClusterView(nodes(2, 4), (a_job("a", curve, 4, request=4),))
    assert sizes_of(ElasticTiresias().decide(view, NOW)) == {"a": 8}


def test_a_worker_that_a_job_has_counts_more_than_one_that_another_would_get() -> None:
    has, likes = {1: 1.0, 2: 1.50}, {1: 1.0, 2: 1.55}
    view = ClusterView(nodes(1, 3), (a_job("a", has, 2), a_job("b", likes, 1)))
    assert sizes_of(ElasticTiresias().decide(view, NOW)) == {"a": 2, "b": 1}
    assert sizes_of(ElasticTiresias(keep=1.0).decide(view, NOW)) == {"a": 1, "b": 2}


def test_a_job_that_returns_to_the_first_queue_has_all_of_its_service_there_before_it() -> None:
    waited = msgspec.structs.replace(
        a_job("a", {1: 1.0}, 0), service=1e5, ran=1e3, waited=8e3, notes={**FALLEN, "ran": 0.0, "waited": 0.0}
    )
    back = noted(waited, QUEUES, NOW)
    assert (back["queue"], back["base"], back["urgent"]) == (0.0, 1e5, 1.0)
    runs = msgspec.structs.replace(waited, workers=1, service=1e5 + 50_000, changed=NOW, notes=back)
    assert noted(runs, QUEUES, NOW + 50_000)["queue"] == 0
    runs = msgspec.structs.replace(runs, service=1e5 + 57_600)
    assert noted(runs, QUEUES, NOW + 57_600)["queue"] == 1


# ------------------------------------------------------------------------------------------------------- starvation


@pytest.mark.parametrize(
    ("name", "knob"),
    [
        ("backfill", {"patience_s": "50"}),
        ("srtf", {"promote": "2"}),
        ("tiresias", {"limits": "20", "promote": "2"}),
        ("elastic-tiresias", {"limits": "20", "promote": "2"}),
    ],
)
def test_with_its_knob_no_job_starves_beside_a_stream_of_others(name: str, knob: dict[str, str]) -> None:
    """A wide, long job beside small ones that would always fit before it."""
    stream = [job(f"small-{at}", 5.0 * at, 1, 10.0) for at in range(400)]
    jobs = trace(*stream, job("wide", 1.0, 2, 60.0))
    off: dict[str, str] = {key: "0" if key == "promote" else "1e9" for key in knob if key != "limits"}
    starved = run(jobs, policy_of(name, {**knob, **off}), conditions(1, 2, sees_left=True))
    helped = run(jobs, policy_of(name, knob), conditions(1, 2, sees_left=True))
    ended = [next(one.finished for one in outcome.jobs if one.job.name == "wide") for outcome in (starved, helped)]
    assert ended[1] is not None and ended[1] < 1000
    assert ended[0] is None or ended[0] > 1900


def test_jobs_whose_queues_are_shorter_than_a_change_do_not_only_take_turns() -> None:
    jobs = trace(*(job(f"j{at}", 0.0, 1, 100.0) for at in range(3)))
    for name in ("tiresias", "elastic-tiresias"):
        outcome = run(jobs, policy_of(name, {"limits": "5", "promote": "1"}), conditions(1, 1, 30.0))
        assert all(one.finished is not None and one.finished < 2000 for one in outcome.jobs)


def policy_of(name: str, parameters: dict[str, str]) -> ClusterPolicy:
    return registry.build(name, parameters)
