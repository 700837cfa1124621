"""Metrics of several workers put together are those that one worker would have counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics

from edl.lightning.lightning_validation import ModuleMetrics
from edl.torch.shared_batches import packed_values, unpacked_values


class Held(torch.nn.Module):
    several: Any

    def __init__(self) -> None:
        super().__init__()
        self.sum = torchmetrics.SumMetric()
        self.lowest = torchmetrics.MinMetric()
        self.several = torchmetrics.MetricCollection(
            [torchmetrics.MeanAbsoluteError(), torchmetrics.MeanSquaredError(), torchmetrics.R2Score()]
        )
        self.correlation = torchmetrics.PearsonCorrCoef()
        self.ranks = torchmetrics.SpearmanCorrCoef()
        self.trained = torchmetrics.SumMetric()

    def update(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        self.sum.update(found)
        self.lowest.update(found)
        for one in (self.several, self.correlation, self.ranks):
            one.update(found, wanted)

    def figures(self) -> list[float]:
        several = self.several.compute()
        ones = self.sum, self.lowest, self.correlation, self.ranks
        return [*(float(several[name]) for name in sorted(several)), *(float(one.compute()) for one in ones)]


FOUND = torch.linspace(0, 1, 30) ** 2
WANTED = torch.sin(torch.arange(30.0))


@pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef`")  # it holds all rows, which is what it is here for
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_of_workers_with_and_without_batches(workers: int) -> None:
    """The last one has none."""
    alone = Held()
    alone.update(FOUND, WANTED)
    held: list[Any] = [Held() for _ in range(workers)]
    for one in held:
        one.trained.update(5.0)
    sharing = [ModuleMetrics(one) for one in held]
    for batch in range(5):
        rows = slice(6 * batch, 6 * batch + 6)
        held[batch % (workers - 1)].update(FOUND[rows], WANTED[rows])
    told: list[Any] = [unpacked_values(packed_values(one.share())) for one in sharing]
    for share in sharing:
        share.take(told)
    figures = [one.figures() for one in held]
    assert all(one == figures[0] for one in figures)
    assert figures[0] == pytest.approx(alone.figures(), rel=1e-5)
    assert all(one.trained.compute() == 5.0 for one in held), "what no callback has touched is as it was"


def test_a_metric_that_nobody_resets_goes_on_with_other_numbers_of_workers() -> None:
    """What one of `dist_reduce_fx=None` holds has a row for each worker of each evaluation."""
    whole = torchmetrics.PearsonCorrCoef()
    held: list[Any] = [torch.nn.ModuleList([torchmetrics.PearsonCorrCoef()]) for _ in range(3)]
    for part, workers in ((slice(15), 2), (slice(15, 30), 3)):
        whole.update(FOUND[part], WANTED[part])
        sharing = [ModuleMetrics(one) for one in held]
        for number, one in enumerate(held[:workers]):
            one[0].update(FOUND[part][number::workers], WANTED[part][number::workers])
        told = [one.share() for one in sharing]
        for share in sharing:
            share.take(told)
    figures = [float(one[0].compute()) for one in held]
    assert figures == pytest.approx([float(whole.compute())] * 3, rel=1e-5)


def test_what_a_metric_held_before_counts_once() -> None:
    held: list[Any] = [torch.nn.ModuleList([torchmetrics.SumMetric(), torchmetrics.MeanMetric()]) for _ in range(2)]
    for one in held:
        for metric in one:
            metric.update(10.0)
    sharing = [ModuleMetrics(one) for one in held]
    for number, one in enumerate(held):
        for metric in one:
            metric.update(float(number + 1))
    told = [one.share() for one in sharing]
    for share in sharing:
        share.take(told)
    assert [[float(metric.compute()) for metric in one] for one in held] == [[13.0, pytest.approx(13 / 3)]] * 2
