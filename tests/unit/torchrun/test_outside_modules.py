"""Modules besides the wrapped models come to a newcomer: a teacher, an average of the weights, a centre."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from edl.torchrun.training_objects import OutsideModules, TrainingObjects


class Centre(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))
        self.centre: torch.Tensor

    def move(self, by: float) -> None:
        self.centre = self.centre + by  # another tensor, as scripts do it


class Script:
    """A worker's script, which makes a model, its average, a frozen network and a loss."""

    def __init__(self, *, has_average: bool = True, weight: float = 0.0) -> None:
        self.objects = TrainingObjects(lambda _optimizer, _model: None, lambda _name, _value: None)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.average = copy.deepcopy(self.model) if has_average else None
        self.frozen, self.loss, self.activation = nn.Linear(2, 1), Centre(), nn.ReLU()
        with torch.no_grad():
            self.frozen.weight.fill_(weight)
        for one in (
            self.model,
            *self.model,
            self.average,
            *(self.average or ()),
            self.frozen,
            self.loss,
            self.activation,
        ):
            if one is not None:
                self.objects.note(one)
        self.outside: OutsideModules = self.objects.outside([self.model])

    def train(self) -> None:
        with torch.no_grad():
            for one in self.model.parameters():
                one.add_(1)
        for one in self.average.parameters() if self.average else ():
            one.data.mul_(0.5).add_(0.1)
        self.loss.move(3)


def test_what_training_changes_in_them_travels_and_no_more() -> None:
    theirs, mine = Script(weight=1.0), Script(weight=2.0)
    assert theirs.outside.now() == {}
    theirs.train()
    found = theirs.outside.now()
    mine.outside.take(found)
    assert theirs.average is not None and mine.average is not None
    assert all(torch.equal(*both) for both in zip(theirs.average.parameters(), mine.average.parameters(), strict=True))
    assert mine.loss.centre.tolist() == [3, 3]
    assert mine.frozen.weight.tolist() == [[2, 2]], "what no training changes is each worker's own"
    assert not any("num_batches_tracked" in name for name in found)
    assert len(found) == 5


def test_the_wrapped_model_is_none_of_them_nor_what_is_around_it() -> None:
    objects = TrainingObjects(lambda _optimizer, _model: None, lambda _name, _value: None)
    model = nn.Sequential(nn.Linear(2, 2))
    around, beside = nn.Sequential(model), nn.Linear(2, 2)
    for one in (model, *model, around):
        objects.note(one)
    assert not copy.deepcopy(objects).outside([model])
    objects.note(beside)
    assert objects.outside([model])
    objects.note(nn.Linear(2, 2))
    assert not objects.outside([model]), "what is made in a mini-batch is not noted"


def test_one_that_some_workers_have_is_left_to_them() -> None:
    theirs, mine = Script(), Script(has_average=False)
    theirs.train()
    mine.outside.take(theirs.outside.now())
    assert mine.loss.centre.tolist() == [3, 3]
    other: Any = Script()
    other.outside.take(mine.outside.now())
    assert other.loss.centre.tolist() == [3, 3]
