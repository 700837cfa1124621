"""Policies against naive twins, and against what Or, Zhang and Freedman (MLSys 2020) have published."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.core.data import batching
from edl.errors import ConfigError
from edl.policy import efficiency, learning
from edl.policy.efficiency import Efficiency, Search, Worth, scaling_efficiency
from edl.policy.policy_job_view import View
from edl.policy.stragglers import Spent, WorkerPaces
from edl.protocol.data_nouns import DataSpec
from edl.protocol.job_policy import Batching, BatchRule
from edl.protocol.tally import Rate
from edl.trainer.learning_rates import ScheduledRate

# Seconds for the whole job with so many workers all the time, read off their plots.
CIFAR = {4: 1171, 8: 1216, 12: 1305, 16: 1303, 20: 1410, 24: 1408}
IMAGENET = {32: 4550, 40: 3638, 48: 3070, 56: 2742, 64: 2357}


def rates(throughput: dict[int, float], sizes: set[int]) -> tuple[Rate, ...]:
    return tuple(Rate(size, 100, round(1e6 * throughput[size]), 1e6) for size in sorted(sizes))


def moves(throughput: dict[int, float], start: int, stride: int, passes: int = 3) -> list[int]:
    """The sizes that a search goes through; its last one is where it stays."""
    search, size, seen, path = Search(Efficiency(0.1), stride, passes=passes), start, {start}, [start]
    for _ in range(100):
        limits: dict[str, Any] = {"minimum": min(throughput), "maximum": max(throughput)}
        decided = search.decide(View(now=0, step=1, size=size, rates=rates(throughput, seen), **limits))
        assert decided.reason
        if decided.size == size:
            return path
        size = decided.size
        seen.add(size)
        path.append(size)
    raise AssertionError(f"it never settles: {path}")


@pytest.mark.parametrize("start", CIFAR)
def test_cifar_settles_at_4_workers_from_any_start(start: int) -> None:
    path = moves({size: 1 / seconds for size, seconds in CIFAR.items()}, start, stride=4)
    assert path[-1] == 4
    assert len(path) - 1 <= max(2, (max(start, 20) - 4) // 4 + 1)  # up once, then down a stride at a time


@pytest.mark.parametrize("start", IMAGENET)
def test_imagenet_settles_at_64_workers_from_any_start(start: int) -> None:
    path = moves({size: 1 / seconds for size, seconds in IMAGENET.items()}, start, stride=8)
    assert path[-1] == 64
    assert len(path) - 1 <= max(2, (64 - start) // 8)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=12), st.data(), st.integers(1, 4))
def test_a_search_visits_no_size_twice_but_the_one_where_it_stays(curve, data, passes) -> None:
    throughput = {size: float(value) for size, value in enumerate(curve, start=1)}
    path = moves(throughput, data.draw(st.sampled_from(sorted(throughput))), 1, passes)
    assert len(set(path[:-1])) == len(path) - 1
    assert set(path) <= set(throughput)
    # Naively: the first of the measured sizes that is not worth leaving upwards.
    seen = sorted(set(path))
    worth = [scaling_efficiency(*rates(throughput, {one, other})) > 0.1 for one, other in pairwise(seen)]
    failed = [size for size, passed in zip(seen, worth, strict=False) if not passed]
    assert path[-1] == (failed[0] if failed else seen[-1])


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.integers(1, 60), st.integers(1, 8))
def test_efficiency_is_one_for_perfect_scaling_and_nothing_for_none(samples_s, other, size, more) -> None:
    def rate(workers: int, throughput: float) -> Rate:
        return Rate(workers, 10, round(throughput * 1e6), 1e6)

    perfect = scaling_efficiency(rate(size, samples_s * size), rate(size + more, samples_s * (size + more)))
    assert perfect == pytest.approx(1.0, rel=1e-4)
    assert scaling_efficiency(rate(size, other), rate(size + more, other)) == 0.0


def test_an_end_is_worth_what_the_file_says() -> None:
    falling = efficiency.read("price = 1\nlinear = { worth = 100, until_s = 1000 }", "u.toml")
    assert [falling.at(end) for end in (0, 250, 1000, 1001)] == [100, 75, 0, 0]
    text = "price=0.5\npieces=[{worth=10,until_s=60},{worth=10,to=4,until_s=120}]"
    pieces = efficiency.read(text, "u.toml")
    assert [pieces.at(end) for end in (60, 90, 120, 121)] == [10, 7, 4, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("price = 1", "either linear"),
        ("price = 1\nlinear = {worth=1, until_s=2}\npieces=[{worth=1,until_s=1}]", "either linear"),
        ("price = -1\nlinear = {worth=1, until_s=2}", "negative"),
        ("price = 1\npieces=[{worth=1,until_s=5},{worth=1,until_s=5}]", "grow"),
        ("price = 1\nlinear = {worth=1, until=2}", "until"),
        ("price", "u.toml"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        efficiency.read(text, "u.toml")
    assert "u.toml" in str(error.value)


@given(st.integers(0, 10**7), st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(0, 100))
def test_worth_is_what_both_ends_bring_less_what_they_cost(left, slow, fast, price) -> None:
    value = efficiency.Utility(price, (efficiency.Piece(1000.0, 7200.0, 0.0),))
    smaller, larger = Rate(2, 10, round(slow * 1e6), 1e6), Rate(3, 10, round(fast * 1e6), 1e6)
    view = View(now=60.0, step=1, size=2, minimum=1, maximum=4, samples_left=left)
    found = Worth(value).judge(view, smaller, larger)
    naive = [(value.at(60 + left / r.samples_s), left / r.samples_s * r.size * price / 3600) for r in (smaller, larger)]
    assert found.numbers["gain"] == pytest.approx(naive[1][0] - naive[0][0])
    assert found.numbers["cost"] == pytest.approx(naive[1][1] - naive[0][1])
    assert found.passes == (found.numbers["gain"] > found.numbers["cost"])


# ----------------------------------------------------------------------------------------------------- stragglers


def ring(busy: list[float], wait: float = 0.01) -> list[Spent]:
    return [Spent(f"w{n}", f"h{n % 3}", seconds, 0.0, wait) for n, seconds in enumerate(busy)]


@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=20), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_paces_are_the_moving_average_batch_by_batch(busy, looks) -> None:
    paces, naive = WorkerPaces(), [1.0] * len(busy)
    speeds = sorted(1 / seconds for seconds in busy)
    middle = len(speeds) // 2
    usual = speeds[middle] if len(speeds) % 2 else (speeds[middle - 1] + speeds[middle]) / 2
    for batches in looks:
        paces.take(ring(busy), batches)
        for _ in range(batches):
            naive = [0.9 * pace + 0.1 / seconds / usual for pace, seconds in zip(naive, busy, strict=True)]
    assert [paces.paces[f"w{n}"] for n in range(len(busy))] == pytest.approx(naive)


def test_a_slow_worker_is_named_after_a_while_with_its_cause() -> None:
    paces = WorkerPaces()
    slow = [*ring([0.1, 0.1, 0.1])[:2], Spent("w2", "h2", 0.2, 0.0, 0.0)]
    paces.take(slow, 5)
    assert paces.verdict() is None  # five batches are not enough
    for _ in range(20):
        paces.take(slow, 5)
    found = paces.verdict()
    assert found is not None and (found.worker, found.cause) == ("w2", "compute")
    paces.forget()
    assert paces.verdict() is None


def test_a_worker_that_only_waits_is_fast() -> None:
    """Whatever is left of a step when all that it has waited is taken off may be nothing, or less."""
    paces = WorkerPaces()
    for _ in range(20):
        paces.take([Spent("quick", "h", 0.0, 0.0, 0.15), Spent("slow", "h", 0.15, 0.0, 0.0)], 5)
    found = paces.verdict()
    assert found is not None and (found.worker, found.cause) == ("slow", "compute")


@pytest.mark.parametrize(
    ("ring", "cause"),
    [
        ([("a", "x", 0.1, 0.0), ("b", "y", 0.1, 0.0), ("c", "z", 0.1, 0.2)], "data"),
        (
            [*((name, "x", 0.1, 0.0) for name in "abc"), ("d", "z", 0.3, 0.0), ("e", "z", 0.3, 0.0)],
            "host",
        ),
    ],
)
def test_the_cause_is_named(ring, cause) -> None:
    paces = WorkerPaces()
    for _ in range(20):
        paces.take([Spent(worker, host, compute, data, 0.0) for worker, host, compute, data in ring], 10)
    found = paces.verdict()
    assert found is not None and found.cause == cause


def test_noise_makes_no_worker_a_straggler() -> None:
    noise = random.Random(1)
    paces = WorkerPaces()
    for _ in range(500):
        paces.take(ring([0.1 * noise.uniform(0.85, 1.15) for _ in range(4)]), 10)
        assert paces.verdict() is None
        assert paces.uneven({}, lambda shares: dict.fromkeys(("w0", "w1", "w2", "w3"), 100)) is None


@example([0.1953125, 0.19921875, 0.19921875, 0.021484375, 0.021484375], 60)
@given(st.lists(st.floats(0.02, 0.2), min_size=3, max_size=6), st.integers(60, 400))
def test_shares_by_pace_let_all_be_done_at_the_same_time(sample_s, batch) -> None:
    """Seconds for each sample; a job that follows them comes to rest, within the rounding of a sample."""
    paces, shares = WorkerPaces(), {}
    workers = [f"w{n}" for n in range(len(sample_s))]

    def dealt(shares) -> dict[str, int]:
        taken = batching.weighted_shares(batch, [shares.get(worker, 1.0) for worker in workers])
        return dict(zip(workers, taken, strict=True))

    for _ in range(6):
        busy = [share * seconds for share, seconds in zip(dealt(shares).values(), sample_s, strict=True)]
        paces.forget()
        for _ in range(30):
            paces.take(ring(busy), 10)
        found = paces.uneven(shares, dealt)
        if found is None:
            break
        shares = found.shares
    else:
        pytest.fail(f"it is shared out again and again: {sample_s}, {batch}: {shares}")
    assert max(busy) < 2 * min(busy) + max(sample_s)


# ------------------------------------------------------------------------------------------- batch, learning rate


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_shares_differ_by_one_at_most_and_miss_nothing(total, size) -> None:
    found = batching.even_shares(total, size)
    assert sum(found) == total and max(found) - min(found) <= 1
    assert list(found) == sorted(found, reverse=True)


@given(st.integers(1, 5000) | st.integers(1, 40), st.lists(st.floats(0.05, 4.0), min_size=1, max_size=40))
def test_weighted_shares_follow_the_pace(total, paces) -> None:
    found = batching.weighted_shares(total, paces)
    assert sum(found) == total
    assert min(found) >= min(2, total // len(paces)), "batch norm cannot train on one sample"
    ideal = [total * pace / sum(paces) for pace in paces]
    if min(ideal) >= 2:
        assert all(abs(part - wish) <= 1 for part, wish in zip(found, ideal, strict=True))


@given(st.integers(0, 5000), st.integers(0, 600))
def test_microbatches_fit_and_are_no_more_than_needed(share, most) -> None:
    found = batching.microbatches(share, most)
    assert sum(found) == share
    if most and share:
        assert max(found) <= most and len(found) == max(1, math.ceil(share / most))


@given(st.integers(1, 100), st.integers(1, 512), st.integers(0, 8192))
def test_the_global_batch_follows_its_rule(size, given_batch, most) -> None:
    local = batching.batch_of_all(Batching(BatchRule.LOCAL, most), size, given_batch)
    assert local == (size * given_batch if not most else min(size * given_batch, most))
    assert batching.batch_of_all(Batching(BatchRule.GLOBAL), size, given_batch) == given_batch
    table = Batching(BatchRule.TABLE, table=((1, 64), (4, 100)))
    assert batching.batch_of_all(table, size, given_batch) == (64 if size < 4 else 100)


@given(st.floats(0.1, 16), st.floats(0.1, 16), st.integers(0, 1000), st.integers(1, 50))
def test_a_ramp_is_a_straight_line(before, after, began, steps) -> None:
    ramp = learning.Ramp(before, after, began, steps)
    assert ramp.at(began) == before
    assert ramp.at(began + steps) == ramp.at(began + 10 * steps) == after
    k = after / before
    for done in range(steps):
        assert ramp.at(began + done) == pytest.approx(before * (1 + done / steps * (k - 1)))
    turned = ramp.turned(1.0, began + steps // 2)
    assert turned.at(began + steps // 2) == pytest.approx(ramp.at(began + steps // 2))


@given(st.integers(0, 50), st.integers(0, 500), st.integers(1, 500))
def test_the_knee_schedule_is_that_of_its_authors(warmup, explore, decay) -> None:
    total = warmup + explore + decay
    knee = learning.Knee(explore / total, warmup / total)
    for step in range(total + 1):
        if step <= warmup:
            naive = step / warmup if warmup else 1.0
        elif step <= warmup + explore:
            naive = 1.0
        else:
            naive = max(0.0, 1.0 - (1.0 / decay) * (step - (explore + warmup)))
        assert knee.at(step / total) == pytest.approx(naive, abs=1e-9)
        warm = learning.Warmup(warmup / total)
        assert warm.at(step / total) == pytest.approx(min(1.0, step / warmup) if warmup else 1.0)


@given(st.lists(st.integers(1, 40), min_size=1), st.sampled_from([learning.Warmup(1), learning.Knee(0)]))
def test_a_straight_line_means_the_same_in_any_batches(batches, line) -> None:
    """Over all samples, half of the full rate."""
    total, found = sum(batches), 0.0
    rate = ScheduledRate(line)
    rate.begin(DataSpec(total, 1, 1))
    for size in batches:
        found += size * rate.at(size)
        rate.count(size)
    assert found == pytest.approx(total / 2)


@given(st.floats(-2, 2), st.floats(-0.4, 0.4), st.floats(0.1, 5))
def test_the_tuner_finds_the_lowest_point_within_bounds(floor, best, curvature) -> None:
    losses = tuple((e, floor + curvature * (e - best) ** 2) for e in (-0.5, -0.25, 0.0, 0.25, 0.5))
    assert learning.tuned(losses, 0.5) == pytest.approx(1 + best, abs=1e-6)
    assert learning.tuned(losses, 0.1) == pytest.approx(1 + max(-0.1, min(0.1, best)), abs=1e-6)
