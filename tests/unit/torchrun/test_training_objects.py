"""Optimizers, schedules and scalers of a script are found, whatever it does with them; and its numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from edl.torch.optimizer import Elastic
from edl.torchrun.script_numbers import ScriptNumbers
from edl.torchrun.training_objects import NOTED, TrainingObjects


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    wrapped, registered = list[Any](), dict[str, Any]()

    def wrap(optimizer: Any, _model: Any) -> None:
        wrapped.append(optimizer)
        optimizer.__class__ = type("Wrapped", (Elastic, type(optimizer)), {})

    objects = TrainingObjects(wrap, registered.__setitem__)
    for kind in NOTED:
        monkeypatch.setattr(kind, "__new__", kind.__new__)  # and back
    objects.watch()
    return objects, wrapped, registered


def test_what_trains_a_wrapped_model_is_wrapped_and_its_schedules_travel(found: Any) -> None:
    objects, wrapped, registered = found
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    mine = torch.optim.AdamW(model.parameters(), lr=0.1)
    alone = torch.optim.SGD(other.parameters(), lr=0.1)
    warm = lr_scheduler.LinearLR(mine, 0.1, total_iters=3)
    both = lr_scheduler.SequentialLR(mine, [warm, lr_scheduler.StepLR(mine, 5)], [3])
    lr_scheduler.StepLR(alone, 5)
    scaler, average = torch.amp.GradScaler("cpu"), torch.optim.swa_utils.AveragedModel(model)
    objects.take([model])
    assert wrapped == [mine]
    assert [type(one).__name__ for one in registered.values()] == [
        "LinearLR", "StepLR", "SequentialLR", "GradScaler", "AveragedModel",
    ]  # fmt: skip
    assert {id(both), id(scaler), id(average)} < {id(one) for one in registered.values()}
    objects.take([model])
    assert wrapped == [mine], "once"
    later = torch.optim.SGD([model.weight], lr=0.1)
    objects.take([model])
    assert wrapped == [mine, later]


def test_what_a_script_does_while_it_passes_over_epochs_is_taken_back(found: Any) -> None:
    objects, _, _ = found
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    objects.take([model])
    put_back = objects.kept()
    schedule.last_epoch, optimizer.param_groups[0]["lr"] = 7, 0.01
    put_back()
    assert schedule.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 1.0
    assert optimizer.param_groups[0]["params"] == [*model.parameters()]


def test_numbers_that_training_changes_travel_and_no_others() -> None:
    theirs: dict[str, Any] = {"rank": 0, "iteration": 0, "best": 1e9, "flag": True, "name": "x", "_private": 1}
    numbers = ScriptNumbers(theirs)
    theirs |= {"iteration": 7, "best": 0.5, "flag": False, "_private": 2, "loss": 0.1, "text": "y"}
    assert numbers.now() == {"iteration": 7, "best": 0.5, "loss": 0.1}
    mine: dict[str, Any] = {"rank": 2, "iteration": 1, "best": 1e9}
    ScriptNumbers(mine).take(numbers.now())
    assert mine == {"rank": 2, "iteration": 7, "best": 0.5}
