"""The largest sum of worths against every choice there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.cluster import knapsack
from edl.cluster.knapsack import best, exact, near
from examples import examples

COLUMNS = 5


@st.composite
def tables(draw, concave=False):
    """Sizes and worths of up to four jobs, and up to eight devices on which their smallest sizes fit."""
    jobs = draw(st.integers(1, 4))
    devices = draw(st.integers(jobs, 8))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    least = rng.integers(0, devices // jobs + 1, size=jobs)
    steps = np.ones((jobs, COLUMNS - 1), dtype=np.int64) if concave else rng.integers(0, 4, size=(jobs, COLUMNS - 1))
    sizes = np.cumsum(np.concatenate([least[:, None], steps], axis=1), axis=1)
    gains = rng.integers(0 if concave else -20, 100, size=(jobs, COLUMNS)).astype(float)
    worth = np.cumsum(-np.sort(-gains, axis=1) if concave else gains, axis=1)
    if not concave:
        worth[:, 1:][rng.random((jobs, COLUMNS - 1)) < 0.2] = -np.inf
    return sizes, worth, devices


def sum_of(sizes, worth, devices, columns):
    rows = np.arange(len(sizes))
    assert sizes[rows, columns].sum() <= devices
    return worth[rows, columns].sum()


def brute_force(sizes, worth, devices):
    every = np.array(list(itertools.product(range(COLUMNS), repeat=len(sizes))))
    rows = np.arange(len(sizes))
    fits = sizes[rows, every].sum(axis=1) <= devices
    return worth[rows, every].sum(axis=1)[fits].max()


def longest_step(sizes, worth):
    """The largest gain of a job between two sizes, one after the other, that some price makes best."""
    gains = [0.0]
    for mine, values in zip(sizes, worth, strict=True):
        hull: list[tuple[int, float]] = []
        for size, value in sorted({(int(s), float(v)) for s, v in zip(mine, values, strict=True) if np.isfinite(v)}):
            while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (size - hull[-1][0]) <= (value - hull[-1][1]) * (
                hull[-1][0] - hull[-2][0]
            ):
                hull.pop()
            hull.append((size, value))
        gains += [after[1] - before[1] for before, after in itertools.pairwise(hull)]
    return max(gains)


@given(tables())
@settings(deadline=None, max_examples=examples(60))
def test_exact_is_the_best_of_all_choices(table) -> None:
    sizes, worth, devices = table
    assert sum_of(sizes, worth, devices, exact(sizes, worth, devices).columns) == brute_force(sizes, worth, devices)


@given(tables())
@settings(deadline=None, max_examples=examples(100))
def test_near_misses_no_more_than_it_says_and_less_than_a_step(table) -> None:
    sizes, worth, devices = table
    chosen = near(sizes, worth, devices)
    reached = sum_of(sizes, worth, devices, chosen.columns)
    most = sum_of(sizes, worth, devices, exact(sizes, worth, devices).columns)
    assert most - 1e-6 <= reached + chosen.gap
    assert chosen.gap <= longest_step(sizes, worth) * (1 + 1e-9) + 1e-6


@given(tables(concave=True))
@settings(deadline=None, max_examples=examples(60))
def test_near_is_exact_where_each_device_more_is_worth_less(table) -> None:
    sizes, worth, devices = table
    most = sum_of(sizes, worth, devices, exact(sizes, worth, devices).columns)
    assert abs(sum_of(sizes, worth, devices, near(sizes, worth, devices).columns) - most) <= 1e-6


def test_many_jobs_are_near_and_few_are_exact(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    sizes = np.tile(np.array([1, 2, 4, 8, 16]), (300, 1))
    worth = np.cumsum(rng.random((300, 5)), axis=1)
    assert best(sizes, worth, 800).gap == 0.0  # 300 x 5 x 800 steps: the dynamic program
    most = sum_of(sizes, worth, 800, exact(sizes, worth, 800).columns)
    monkeypatch.setattr(knapsack, "EXACT", 0)
    chosen = best(sizes, worth, 800)
    reached = sum_of(sizes, worth, 800, chosen.columns)
    assert most - chosen.gap - 1e-6 <= reached <= most + 1e-6
    assert reached >= 0.995 * most


@pytest.mark.parametrize("jobs", [10, 300])
def test_what_jobs_alike_leave_is_filled(jobs) -> None:
    """At one price all of them want the same: the first ones get it, and no device is left over."""
    sizes = np.tile(np.arange(1, 4), (jobs, 1))
    worth = np.tile(np.array([0.0, 1.0, 1.9]), (jobs, 1))
    columns = near(sizes, worth, jobs * 3 // 2).columns
    assert sizes[np.arange(jobs), columns].sum() == jobs * 3 // 2
    assert sorted(columns) == [0] * (jobs // 2) + [1] * (jobs // 2)
