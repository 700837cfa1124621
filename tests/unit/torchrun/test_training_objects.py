"""Optimizers, schedules and scalers of a script are found, whatever it does with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from edl.errors import UsageError
from edl.torch.optimizer import Elastic
from edl.torchrun.refusals import REFUSED_KINDS
from edl.torchrun.training_objects import TrainingObjects, let_schedules_end


@pytest.fixture
def found() -> Any:
    wrapped, registered = list[Any](), dict[str, Any]()

    def wrap(optimizer: Any, _model: Any) -> None:
        wrapped.append(optimizer)
        optimizer.__class__ = type("Wrapped", (Elastic, type(optimizer)), {})

    return TrainingObjects(wrap, registered.__setitem__), wrapped, registered


def test_what_is_made_is_noted_whatever_its_arguments(found: Any) -> None:
    class Kind:
        def __init__(self, one: int, *, more: int = 0) -> None:
            self.one, self.more = one, more

    class Derived(Kind):
        def __init__(self) -> None:  # without calling the other
            self.one = self.more = 3

    objects, _, registered = found
    objects.watch([Kind])
    made = [Kind(1, more=2), Derived(), copy.copy(Kind(5))]
    assert [(one.one, one.more) for one in made] == [(1, 2), (3, 3), (5, 0)]
    objects.take([])
    assert [*registered.values()] == made


def test_what_trains_a_wrapped_model_is_wrapped_and_its_schedules_travel(found: Any) -> None:
    objects, wrapped, registered = found
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    mine = torch.optim.AdamW(model.parameters(), lr=0.1)
    alone = torch.optim.SGD(other.parameters(), lr=0.1)
    warm, then = lr_scheduler.LinearLR(mine, 0.1, total_iters=3), lr_scheduler.StepLR(mine, 5)
    both, apart = lr_scheduler.SequentialLR(mine, [warm, then], [3]), lr_scheduler.StepLR(alone, 5)
    scaler, average = torch.amp.GradScaler("cpu"), torch.optim.swa_utils.AveragedModel(model)
    for one in (mine, alone, warm, then, both, apart, scaler, average):
        objects.note(one)
    objects.take([model])
    assert wrapped == [mine]
    assert [type(one).__name__ for one in registered.values()] == [
        "LinearLR", "StepLR", "SequentialLR", "GradScaler", "AveragedModel",
    ]  # fmt: skip
    assert {id(both), id(scaler), id(average)} < {id(one) for one in registered.values()}
    objects.take([model])
    assert wrapped == [mine], "once"
    objects.note(later := torch.optim.SGD([model.weight], lr=0.1))
    objects.take([model])
    assert wrapped == [mine, later]


def test_what_a_script_does_while_it_passes_over_epochs_is_taken_back(found: Any) -> None:
    objects, _, _ = found
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    objects.note(optimizer)
    objects.note(schedule)
    objects.take([model])
    put_back = objects.kept()
    schedule.last_epoch, optimizer.param_groups[0]["lr"] = 7, 0.01
    put_back()
    assert schedule.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 1.0
    assert optimizer.param_groups[0]["params"] == [*model.parameters()]


def test_what_shares_out_a_model_or_its_optimizer_is_refused_where_it_is_made(found: Any) -> None:
    objects, _, _ = found
    for name, remedy in REFUSED_KINDS.items():
        kind = type(name, (), {"__module__": "torch.distributed.optim.somewhere"})
        for one in (kind(), type("Derived", (kind,), {})()):
            with pytest.raises(UsageError, match=f"{name}: {remedy}"):
                objects.note(one)


def test_a_schedule_of_fixed_length_keeps_its_last_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lr_scheduler.OneCycleLR, "step", lr_scheduler.OneCycleLR.step)
    let_schedules_end()
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    schedule = lr_scheduler.OneCycleLR(optimizer, 2.0, total_steps=4)
    rates = []
    for _ in range(6):
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr())
    assert rates[2] != rates[3] == rates[4] == rates[5]
