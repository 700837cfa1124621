"""Lightning's own evaluation loop, shared out in rings that break. Each worker is a thread, with its own trainer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from breaking_rings import Fault, Member, Net, play
from torch.utils.data import DataLoader, TensorDataset

from edl.errors import UsageError
from edl.lightning.lightning_validation import share_out
from edl.torch.loop_collectives import LoopCollectives

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's to Lightning, and of Lightning's to a script

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen = torchmetrics.SumMetric()
        self.losses: list[torch.Tensor] = []
        self.among_all: Any = None
        self.asks_in_step = self.asks_of_other_shapes = False

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        [rows] = batch
        self.losses.append(rows.mean())
        self.seen.update(len(rows))
        self.log("loss", rows.mean())
        self.log("highest", rows.max(), reduce_fx="max")
        self.log("seen", self.seen)
        if self.asks_in_step:
            self.trainer.strategy.all_gather(rows.mean())

    def on_validation_epoch_end(self) -> None:
        mean = torch.stack(self.losses).mean()  # as Lightning's guide has it: on a worker without any batch it raises
        self.among_all = self.trainer.strategy.all_gather(
            torch.zeros(self.trainer.strategy.rank) if self.asks_of_other_shapes else mean
        )
        self.log("among_all", self.among_all.mean())


class Worker(Member):
    """`trainer.validate`, in a ring."""

    def __init__(self, net: Net, number: int, samples: int, **asks: bool) -> None:
        super().__init__(net, number)
        self.loader = DataLoader(TensorDataset(torch.arange(float(samples))), 7)
        self.module, self.trainer = Module(), pl.Trainer(**QUIET)
        for name, value in asks.items():
            setattr(self.module, name, value)
        words = LoopCollectives(SimpleNamespace(ring=self), self, lambda: self.evaluate_shared)
        share_out(self.trainer, words, lambda: self.evaluate_shared)
        strategy = self.trainer.strategy
        strategy.all_gather, strategy.rank = words.gathered, number
        self.figures: dict[str, float] = {}

    def script(self) -> None:
        [self.figures] = self.trainer.validate(self.module, self.loader, verbose=False)
        self.evaluate_shared(Nothing())  # all have come to the end


class Nothing:
    """To evaluate."""

    units = 0

    def compute(self, units: Any, goes_on: Any) -> Any:
        return units

    def found(self) -> bytes:
        return b""


def alone(samples: int) -> dict[str, float]:
    trainer, module = pl.Trainer(**QUIET), Module()
    trainer.strategy.rank = 0
    [figures] = trainer.validate(module, DataLoader(TensorDataset(torch.arange(float(samples))), 7), verbose=False)
    return {name: value for name, value in figures.items() if name != "among_all"}


def ran(net: Net, samples: int, **asks: bool) -> list[Worker]:
    first = [Worker(net, number, samples, **asks) for number in sorted(net.living)]
    return [one for one in play(net, first, lambda number: Worker(net, number, samples, **asks)) if one.came]


@pytest.mark.parametrize(("workers", "samples"), [(1, 20), (2, 20), (3, 20), (3, 8), (4, 3)])
def test_figures_are_those_of_one_worker(workers: int, samples: int) -> None:
    """Also where batches are fewer than workers, and the last one is smaller."""
    found = ran(Net(workers, {}), samples)
    expected = alone(samples)
    assert len(found) == workers
    for one in found:
        assert {name: value for name, value in one.figures.items() if name != "among_all"} == pytest.approx(expected)
        assert one.module.losses and len(one.module.among_all) == workers
        assert one.figures["among_all"] == found[0].figures["among_all"]


@pytest.mark.parametrize("moment", range(10))
def test_a_death_at_any_moment_and_a_newcomer_that_comes_for_it(moment: int) -> None:
    """Before the first round, in it, in the last one, and in what is gathered afterwards."""
    net = Net(3, {(1, moment): Fault({1}, {0}, newcomers=1)})
    found = ran(net, 20)
    assert net.faulted and len(found) == 3
    for one in found:
        assert one.figures == pytest.approx({**alone(20), "among_all": found[0].figures["among_all"]})


def test_what_all_must_call_is_refused_in_a_step_that_not_all_make() -> None:
    with pytest.raises(UsageError, match="validation_step and test_step of a worker see its share"):
        ran(Net(2, {}), 20, asks_in_step=True)


def test_tensors_of_other_shapes_are_not_gathered() -> None:
    with pytest.raises(UsageError, match="another worker has one of another shape"):
        ran(Net(2, {}), 20, asks_of_other_shapes=True)
