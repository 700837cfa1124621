"""What `edl.prepare` refuses, in one line with the remedy; and where mini-batches of a prepared loader end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import edl.torch as edl
from edl.errors import UsageError
from edl.torch import loader_conversion as module
from edl.torch.loader_conversion import ElasticBatches


def given() -> tuple[Any, Any, Any]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(list(range(4)))  # type: ignore[arg-type]


def refused(*arguments: Any) -> str:
    with pytest.raises(UsageError) as caught:
        edl.prepare(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_order_is_refused() -> None:
    model, optimizer, loader = given()
    assert "got a SGD and a Linear" in refused(optimizer, model, loader)
    assert "got a Linear and a DataLoader" in refused(model, loader, optimizer)


def test_a_model_that_averages_by_itself_is_refused() -> None:
    _, optimizer, loader = given()
    wrapped = object.__new__(DistributedDataParallel)  # of no process group
    assert "leave that away" in refused(wrapped, optimizer, loader)


class Seat:
    """At one step until a mini-batch ends."""

    def __init__(self) -> None:
        self.at, self.ended, self.voided = 1, 0, False
        self.end: Any = None  # of the mini-batch that was given out

    def step(self) -> int:
        return self.at

    def give_out(self, end: Any) -> None:
        self.end = end

    def notify_batch_end(self) -> None:
        self.at, self.ended = self.at + 1, self.ended + 1


def prepared(monkeypatch: pytest.MonkeyPatch) -> tuple[Seat, ElasticBatches]:
    seat = Seat()
    monkeypatch.setattr(module, "trainer", seat)
    monkeypatch.setattr(module, "framework", SimpleNamespace(updates=lambda: seat.ended))

    class Parts(list[Any]):
        last = True

    return seat, ElasticBatches(Parts("abc"), str.upper)  # type: ignore[arg-type]


def test_asking_for_the_next_one_ends_a_mini_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seat, loader = prepared(monkeypatch)
    assert [(batch, seat.ended) for batch in loader] == [("A", 0), ("B", 1), ("C", 2)]
    assert seat.ended == 3


@pytest.mark.parametrize("ended", range(3))
def test_one_that_an_evaluation_has_ended_is_not_ended_again(monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    seat, loader = prepared(monkeypatch)
    for number, _ in enumerate(loader):
        if number == ended:
            seat.end()
            assert (seat.ended, seat.end, loader.in_step, loader.between) == (number + 1, None, False, True)
    assert seat.ended == 3


class Shards:
    """Of so many steps an epoch."""

    def __init__(self, seat: Seat, steps: int) -> None:
        self.seat, self.steps, self.left = seat, steps, 0

    @property
    def epochs_done(self) -> int:
        return (self.seat.at - 1) // self.steps

    def leave(self) -> None:
        self.left += 1


def test_a_pass_that_is_left_ends_its_step_before_the_next_epoch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update is made: with it the step is over, and the epoch may be."""
    seat, loader = prepared(monkeypatch)
    shards = Shards(seat, steps=2)
    loader.parts.loader = SimpleNamespace(shards=shards)  # type: ignore[assignment]
    made = 0
    monkeypatch.setattr(module, "framework", SimpleNamespace(updates=lambda: made))
    passes = []
    for epoch in loader.epochs(2):
        for _ in loader:
            made += 1
            break
        passes.append((epoch, seat.ended))
    assert passes == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert (seat.ended, shards.left) == (4, 4), "the last one has ended, too"


def test_a_pass_that_is_left_in_a_void_mini_batch_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else this worker never comes to the ring that follows: it would have that mini-batch again and again."""
    seat, loader = prepared(monkeypatch)
    loader.parts.loader = SimpleNamespace(shards=Shards(seat, steps=2))  # type: ignore[assignment]
    monkeypatch.setattr(module, "framework", SimpleNamespace(updates=lambda: 0))
    next(iter(loader))
    seat.voided = True
    next(iter(loader))
    assert seat.ended == 1


def test_a_pass_that_is_left_before_an_update_has_the_same_batch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seat, loader = prepared(monkeypatch)
    shards = Shards(seat, steps=2)
    loader.parts.loader = SimpleNamespace(shards=shards)  # type: ignore[assignment]
    for _ in range(3):
        next(iter(loader))
    assert (seat.ended, shards.left) == (0, 0)


def test_a_script_that_ends_it_as_well_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seat, loader = prepared(monkeypatch)
    batches = iter(loader)
    next(batches)
    seat.notify_batch_end()
    with pytest.raises(UsageError, match="leave the call away"):
        next(batches)
    assert seat.ended == 1
