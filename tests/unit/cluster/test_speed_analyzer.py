"""The analyzer finds the job that reports to it, and says how unsure it is of what it has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl.cluster.speed_analyzer import (
    CENTRES,
    KINDS,
    Analyzer,
    Batches,
    MeasuredSteps,
    Noise,
    StepModel,
    fit,
    log_slopes,
)
from edl.cluster.views import Aim, Provenance, Table
from edl.errors import ConfigError

BATCHES = Batches(own=128, smallest=128, largest=4096, smallest_pass=16, largest_pass=512, given=256)


class TrueJob:
    """A job that the model describes exactly."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.parameters = CENTRES + np.array([-3.0, -8.0, -3.0, 0, 0, 0, 0, 0]) + rng.normal(0, 0.3, size=8)

    def step_s(self, workers: int, nodes: int, samples: int) -> tuple[float, float]:
        where = (np.array([float(workers)]), np.array([float(nodes)]), np.array([float(samples)]))
        model = StepModel(self.parameters, np.zeros((8, 8)))
        return float(model.pass_s(where[2])[0]), float(model.step_s(*where)[0])

    def report(self, analyzer: Analyzer, workers: int, samples: int, *, nodes: int = 0, noise: float = 9.0) -> None:
        nodes = nodes or -(-workers // 4)
        pass_s, step_s = self.step_s(workers, nodes, samples)
        analyzer.observe("job", workers, nodes, samples, step_s, max(0.0, step_s - pass_s), 1.0, noise)


def analyzer_of(batches: Batches = BATCHES) -> Analyzer:
    analyzer = Analyzer()
    analyzer.expect("job", batches)
    return analyzer


@pytest.mark.parametrize("seed", range(4))
def test_what_was_seen_at_few_sizes_tells_the_others(seed: int) -> None:
    analyzer, job = analyzer_of(), TrueJob(seed)
    for workers in (1, 2, 3, 4, 6, 8, 12):
        for samples in (32, 128, 512):
            job.report(analyzer, workers, samples)
    rates = analyzer.speed("job").rates(24, 4, Aim.GIVEN)
    for workers in (1, 4, 5, 8, 16, 24):
        truth = 2 / job.step_s(workers, -(-workers // 4), -(-256 // workers))[1] if workers > 1 else None
        if truth is not None:  # 256 are two of its own batches, and worth (9 + 1) / (9 / 2 + 1) of one
            assert rates.progress[workers - 1] == pytest.approx(truth / 2 * 10 / 5.5, rel=0.15)
    assert rates.provenance[:4] == (Provenance.MEASURED,) * 4
    assert rates.provenance[4] == Provenance.FITTED


def test_the_batch_with_most_samples_in_a_second_may_make_less_progress() -> None:
    analyzer, job = analyzer_of(), TrueJob(0)
    for workers in (1, 2, 4, 8):
        for samples in (32, 128):
            job.report(analyzer, workers, samples, noise=2.0)
    best, fastest = (analyzer.speed("job").rates(16, 4, aim) for aim in (Aim.PROGRESS, Aim.THROUGHPUT))
    assert np.all(fastest.throughput >= best.throughput) and np.all(fastest.progress <= best.progress)
    assert fastest.throughput[7] > 1.05 * best.throughput[7] and fastest.progress[7] < 0.95 * best.progress[7]


def test_it_is_the_less_sure_the_less_it_saw() -> None:
    analyzer, job = analyzer_of(), TrueJob(0)
    assert set(analyzer.speed("job").rates(4, 4).provenance) == {Provenance.GUESSED}
    sigmas = []
    for workers in (1, 4, 8, 16):
        job.report(analyzer, workers, 128)
        sigmas.append(analyzer.speed("job").rates(16, 4).sigma[15])
    assert sigmas[0] > sigmas[-1] and min(sigmas) == sigmas[-1]
    sigma = analyzer.speed("job").rates(64, 4).sigma
    assert sigma[63] > 1.5 * sigma[15]


def test_one_worker_is_taken_to_scale_well_and_not_without_loss() -> None:
    analyzer = analyzer_of()
    TrueJob(0).report(analyzer, 1, 128, noise=1e6)
    progress = analyzer.speed("job").rates(16, 4).progress
    assert 0.5 * 8 < progress[7] / progress[0] <= 8 * 1.05


def log_times(parameters: Any, where: Any) -> Any:
    """Of a pass, and of a step."""
    model = StepModel(parameters, np.zeros((8, 8)))
    return np.log(np.concatenate([model.pass_s(where[2]), model.step_s(*where)]))


def test_the_slopes_are_those_of_the_model() -> None:
    rng = np.random.default_rng(0)
    workers, samples = np.array([1, 2, 3, 4, 5, 8, 16.0]), np.array([10, 20, 30, 40, 50, 60, 70.0])
    where = (workers, np.ceil(workers / 4), samples)
    for _ in range(5):
        x = rng.normal(CENTRES, 0.5)
        slopes = np.vstack(log_slopes(x, *where))
        steps = [(log_times(x + step, where) - log_times(x - step, where)) / 2e-6 for step in 1e-6 * np.eye(len(x))]
        assert np.allclose(slopes, np.stack(steps, axis=1), atol=1e-6)


def test_it_fits_anew_only_for_news(monkeypatch) -> None:
    fits = []
    monkeypatch.setattr("edl.cluster.speed_analyzer.fit", lambda seen: fits.append(seen) or fit(seen))
    analyzer, job = analyzer_of(), TrueJob(1)
    job.report(analyzer, 2, 64)
    speed = analyzer.speed("job")
    for _ in range(5):
        job.report(analyzer, 2, 64)
        assert analyzer.speed("job") is speed
    assert len(fits) == 1
    job.report(analyzer, 2, 64, noise=30.0)  # its batch may grow: no step takes another time
    assert analyzer.speed("job") is not speed and len(fits) == 1
    job.report(analyzer, 4, 64)
    analyzer.speed("job")
    assert len(fits) == 2
    for _ in range(20):  # the same kind of step takes longer and longer
        analyzer.observe("job", 4, 1, 64, 10.0, 0.0)
    analyzer.speed("job")
    assert len(fits) == 3


def test_a_fit_depends_on_what_was_seen_and_not_on_its_order() -> None:
    job, found = TrueJob(2), []
    for sizes in ((1, 2, 4, 8), (8, 4, 2, 1)):
        analyzer = analyzer_of()
        for workers in sizes:
            job.report(analyzer, workers, 64)
            analyzer.speed("job")
        found.append(analyzer.speed("job").rates(16, 4).progress)
    assert np.allclose(found[0], found[1], rtol=1e-3)


def test_what_it_keeps_is_bounded(monkeypatch) -> None:
    fitted = []
    monkeypatch.setattr("edl.cluster.speed_analyzer.fit", lambda seen: fitted.append(seen) or fit(seen))
    analyzer, job = analyzer_of(), TrueJob(0)
    for samples in range(1, 4 * KINDS):
        job.report(analyzer, 1, samples)
    analyzer.speed("job")
    assert [len(seen.workers) for seen in fitted] == [KINDS]
    analyzer.forget("job")
    with pytest.raises(KeyError):
        analyzer.speed("job")


def test_batches_keep_to_what_the_job_may_have() -> None:
    analyzer, job = analyzer_of(), TrueJob(0)
    for workers in (1, 2, 4):
        job.report(analyzer, workers, 128, noise=1e9)
    rates = analyzer.speed("job").rates(300, 4)
    assert (rates.batch[:256] <= 4096).all() and (rates.batch[:256] >= 128).all()
    assert (rates.batch[:256] >= 16 * np.arange(1, 257)).all()
    assert (rates.progress[256:] == 0).all()  # 257 workers cannot share 4,096 by 16 at least
    assert rates.batch[7] > 2048  # where a sample is a sample, the largest batch is the fastest


def test_without_noise_a_larger_batch_is_worth_nothing_more() -> None:
    analyzer = analyzer_of()
    analyzer.observe("job", 2, 1, 64, 0.1, 0.01)
    assert analyzer.speed("job").rates(2, 4).batch[1] == 128


def test_gain_of_noise() -> None:
    gains = Noise(sqr=1.0, var=3.0).gain(np.array([1.0, 2.0, 4.0, 1e12]))
    assert gains == pytest.approx([1.0, 4 / 2.5, 4 / 1.75, 4.0])


@pytest.mark.parametrize(
    "step", [(0, 1, 8, 1.0, 0.1), (2, 3, 8, 1.0, 0.1), (1, 1, 0, 1.0, 0.1), (1, 1, 8, 1.0, 1.0), (1, 1, 8, 1.0, -0.1)]
)
def test_a_step_that_cannot_be_is_refused(step) -> None:
    with pytest.raises(ConfigError, match="job reports a step that cannot be"):
        analyzer_of().observe("job", *step)


def test_fit_of_one_step() -> None:
    one, samples, took = np.array([1.0]), np.array([64.0]), np.array([0.2])
    model = fit(MeasuredSteps(one, one, samples, np.log(took), np.log(took)))
    assert model.step_s(one, one, samples) == pytest.approx(took, rel=0.01)


def test_a_table_is_linear_between_its_sizes() -> None:
    table = Table({2: 4.0, 4: 6.0, 8: 0.0}, batch=10)
    assert table.rates(6, 4).progress.tolist() == [2.0, 4.0, 5.0, 6.0, 6.0, 6.0]
    assert table.rates(2, 4).throughput.tolist() == [20.0, 40.0]
    with pytest.raises(ConfigError, match="needs rates above 0"):
        Table({1: 0.0})
