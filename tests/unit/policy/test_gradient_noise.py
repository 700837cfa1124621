"""The gradient noise, from norms, and what a larger batch is worth by it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edl.policy.learning import MeasuredNoise, of_step


def test_it_is_found_in_random_gradients() -> None:
    """Of three workers with unequal parts of each batch, over many steps."""
    source = np.random.default_rng(5)
    true, spread, parts = source.normal(size=40), 3.0, np.array([2, 6, 8])
    batch, found = parts.sum(), []
    for _ in range(4000):
        own = [source.normal(true, spread / math.sqrt(part)) for part in parts]
        whole = sum(part / batch * gradient for part, gradient in zip(parts, own, strict=True))
        norms = float(np.mean([gradient @ gradient for gradient in own]))
        one = of_step(norms, float(np.mean(batch / parts)), float(whole @ whole))
        assert one is not None
        found.append(one)
    sqr, var = np.mean(found, axis=0)
    assert sqr == pytest.approx(true @ true, rel=0.03)
    assert var * batch == pytest.approx(40 * spread**2, rel=0.03)


@pytest.mark.parametrize(
    ("own", "inverse", "whole"), [(1.0, 1.0, 1.0), (math.inf, 2.0, 1.0), (1.0, 2.0, math.nan), (1.0, math.nan, 1.0)]
)
def test_nothing_is_told_by_one_worker_or_by_gradients_that_overflow(own: float, inverse: float, whole: float) -> None:
    assert of_step(own, inverse, whole) is None


def test_a_gain_lies_between_nothing_and_all() -> None:
    assert MeasuredNoise(sqr=1.0, var=0.0).gain(32, 128) == 1.0
    assert MeasuredNoise(sqr=0.0, var=1.0).gain(32, 128) == pytest.approx(4.0)
    assert MeasuredNoise(sqr=-0.1, var=1.0).gain(32, 128) == pytest.approx(4.0), "noise itself may make it negative"
    assert MeasuredNoise(sqr=0.0, var=0.0).gain(32, 128) == 1.0
    noise = MeasuredNoise(sqr=1.0, var=128.0)
    assert noise.scale == 128.0
    assert noise.gain(32, 128) == pytest.approx((4 + 1) / (1 + 1))
    assert noise.gain(128, 32) == pytest.approx(1 / noise.gain(32, 128)), "smaller batches are worth less"
    gains = [noise.gain(32, batch) for batch in (32, 64, 256, 1024, 10**6)]
    assert gains == sorted(gains) and gains[0] == 1.0 and gains[-1] < 5.0 + 1e-3
