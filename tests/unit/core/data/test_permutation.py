"""The shuffle is a bijection, looks random, and never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.core.data.permutation import SORTED_BELOW, samples_at
from edl.protocol.data_nouns import DataSpec, Range
from examples import examples

POWERS = [2**k + d for k in (2, 6, 10, 12, 14, 16) for d in (-1, 0, 1)]


def spec(total: int, seed: int = 0, *, shuffle: bool = True) -> DataSpec:
    return DataSpec(total=total, epochs=1, batch=1, shuffle=shuffle, seed=seed)


def order(total: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return samples_at(spec(total, seed), Range(epoch, 0, total))


def excess(counts: np.ndarray) -> float:
    """How many standard deviations a chi-square statistic of equally likely bins lies above its mean."""
    freedom = counts.size - 1
    expected = counts.sum() / counts.size
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("total", [1, 2, 3, 5, 1000, SORTED_BELOW - 1, SORTED_BELOW, 123_457, *POWERS])
def test_every_sample_stands_at_one_position(total):
    assert np.array_equal(np.sort(order(total)), np.arange(total))


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(SORTED_BELOW, 60_000), st.integers(), st.integers(0, 1000))
def test_every_sample_stands_at_one_position_whatever_seed_and_epoch(total, seed, epoch):
    assert np.array_equal(np.sort(order(total, seed, epoch)), np.arange(total))


@pytest.mark.parametrize("total", [10**9, 2**32 + 1, 2**62])
def test_a_part_of_a_huge_epoch_has_no_repeats(total):
    ids = np.concatenate([samples_at(spec(total), Range(0, at, at + 50_000)) for at in (0, total // 2, total - 50_000)])
    assert ids.min() >= 0
    assert ids.max() < total
    assert np.unique(ids).size == ids.size
    assert excess(np.bincount(ids // (-(-total // 64)), minlength=64)) < 5


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 10_000), st.data())
def test_a_range_is_a_slice_of_the_whole(total, data):
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    assert np.array_equal(samples_at(spec(total), Range(0, start, stop)), order(total)[start:stop])


@pytest.mark.parametrize("total", [2, 7, 100, 5000])
@pytest.mark.parametrize("position", [0, 1])
def test_every_sample_is_equally_likely_to_stand_at_a_position(total, position):
    ids = [samples_at(spec(total, seed), Range(0, position, position + 1))[0] for seed in range(800)]
    bins = min(total, 20)
    assert excess(np.bincount(np.array(ids) * bins // total, minlength=bins)) < 4


def test_all_orders_of_three_are_equally_likely():
    orders = [tuple(order(3, seed)) for seed in range(1500)]
    counts = np.array([orders.count(one) for one in set(orders)])
    assert counts.size == 6
    assert excess(counts) < 4


@pytest.mark.parametrize("total", [1000, 200_000])
@pytest.mark.parametrize("lag", [1, 2, 64])
def test_a_sample_says_nothing_of_the_next(total, lag):
    ids = order(total) / total
    assert abs(np.corrcoef(ids[:-lag], ids[lag:])[0, 1]) < 4 / np.sqrt(total)
    grid = np.histogram2d(ids[:-lag], ids[lag:], bins=8)[0].ravel()
    assert excess(grid) < 5


@pytest.mark.parametrize("total", [1000, 200_000])
def test_epochs_and_seeds_have_orders_of_their_own(total):
    same = [np.mean(order(total) == other) for other in (order(total, seed=1), order(total, epoch=1))]
    assert max(same) < 10 / total


def test_without_shuffle_a_position_is_its_sample():
    assert list(samples_at(spec(10**9, shuffle=False), Range(3, 7, 10))) == [7, 8, 9]


def test_who_changes_the_shuffle_breaks_every_checkpoint():
    """These values are part of the format: a job that resumes under a newer version must find the same order."""
    assert order(10).tolist() == GOLDEN_10
    assert samples_at(spec(10**9, seed=7), Range(2, 123_456, 123_460)).tolist() == GOLDEN_BILLION
    assert samples_at(spec(2**40, seed=-1), Range(0, 2**40 - 2, 2**40)).tolist() == GOLDEN_NEGATIVE_SEED


GOLDEN_10 = [1, 4, 9, 0, 5, 3, 6, 2, 8, 7]
GOLDEN_BILLION = [847751558, 30228274, 625546393, 76242743]
GOLDEN_NEGATIVE_SEED = [363936119088, 516121482907]
