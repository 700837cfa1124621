"""What the elastic Trainer does otherwise than the Trainer, without a job."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainingArguments
from transformers.optimization import GreedyLR

from edl.errors import UsageError
from edl.torch.loop_steps import StepEnd
from edl.transformers import hf_trainer
from edl.transformers.hf_loop import UpdatePlan
from edl.transformers.hf_trainer import EdlTrainerMixin


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_trainer, "seat", SimpleNamespace(size=lambda: 1, virtual=0))


class TrainerOfOneEpoch:
    """The Trainer that the mixin stands in front of."""

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[int, ...]:
        return (1, 2, 3)


class ElasticOfOneEpoch(EdlTrainerMixin, TrainerOfOneEpoch):
    """Not begun."""

    def __init__(self) -> None:
        self.args: Any = SimpleNamespace(logging_nan_inf_filter=True)
        self.state = SimpleNamespace(global_step=3)
        self._globalstep_last_logged = 3
        self._tr_loss = torch.tensor(0.0)
        self._created_lr_scheduler = True
        self.accelerator = SimpleNamespace(optimizer_step_was_skipped=False)


def test_a_training_of_so_many_updates_ends_with_them_and_not_with_the_epochs_that_one_size_would_take() -> None:
    trainer = ElasticOfOneEpoch()
    assert trainer.set_initial_training_values(SimpleNamespace(max_steps=40), None) == (sys.maxsize, 2, 3)
    assert trainer.set_initial_training_values(SimpleNamespace(max_steps=-1), None) == (1, 2, 3)


@pytest.mark.parametrize("kind", [torch.optim.lr_scheduler.ReduceLROnPlateau, GreedyLR])
def test_a_schedule_that_goes_by_metrics_waits_for_an_evaluation(kind: Any) -> None:
    trainer = ElasticOfOneEpoch()
    trainer.lr_scheduler = kind(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    before = trainer.lr_scheduler.last_epoch
    planned = UpdatePlan(updates=20, workers=2, epochs=2.0, by_epochs=True, position=4.5)
    trainer._advance(planned)
    assert trainer.state.global_step == 4 and trainer.lr_scheduler.last_epoch == before


def test_any_other_schedule_moves_with_the_update() -> None:
    trainer = ElasticOfOneEpoch()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    optimizer.step()
    trainer._advance(UpdatePlan(updates=20, workers=1, epochs=2.0, by_epochs=True))
    assert trainer.lr_scheduler.last_epoch == 1


class StepsThatEnd:
    """Of one step."""

    def __init__(self, *, counted: bool) -> None:
        self.counted = counted
        self.travels = SimpleNamespace(plan=UpdatePlan(updates=20, workers=1, epochs=2.0, by_epochs=True))

    def settle(self) -> bool:
        return self.counted

    def end_step(self, *, counted: bool) -> Any:
        return StepEnd.AGAIN


@pytest.mark.parametrize(("counted", "loss"), [(True, 3.0), (False, 0.0)])
def test_the_loss_of_a_step_is_logged_if_it_counts(counted: bool, loss: float) -> None:
    trainer: Any = ElasticOfOneEpoch()
    trainer.lr_scheduler, trainer.model, trainer._take_rank = None, torch.nn.Linear(1, 1), lambda: None
    trainer._losses = [torch.tensor(1.0), torch.tensor(2.0)]
    trainer._end_step(StepsThatEnd(counted=counted))
    assert trainer._tr_loss.item() == loss


def test_a_setting_that_would_take_the_signal_from_edl_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hf_trainer, "seat", SimpleNamespace(began=True, seating=SimpleNamespace(check_alone=lambda _: None))
    )
    with pytest.raises(UsageError, match="enable_jit_checkpoint") as caught:
        EdlTrainerMixin(args=TrainingArguments(str(tmp_path), enable_jit_checkpoint=True, use_cpu=True))
    assert "\n" not in str(caught.value)


def test_what_a_batch_of_an_evaluation_counts_is_asked_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers compute other numbers of batches: they would wait for each other."""

    class Counting:
        def _get_num_items_in_batch(self, batches: Any, device: Any) -> torch.Tensor:
            return torch.tensor(5)

    class Elastic(EdlTrainerMixin, Counting):
        def __init__(self) -> None:
            self.args: Any = SimpleNamespace(average_tokens_across_devices=True, device="cpu")
            self._words: Any = SimpleNamespace(reduced=lambda mine, _: 2 * mine)

    monkeypatch.setattr(hf_trainer, "seat", SimpleNamespace(size=lambda: 3))
    monkeypatch.setattr(hf_trainer, "framework", SimpleNamespace(share_of_step=lambda _: 1.0))
    trainer: Any = Elastic()
    assert int(trainer._get_num_items_in_batch([], "cpu")) == 5
    assert int(trainer._items_of_all(torch.tensor(5))) == 10, "in a step, of all"
