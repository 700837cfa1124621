"""Which gradients are a contribution to a mini-batch: none of a backward() that an exception has ended."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edl.collectives.ring_port import GradientWeight
from edl.errors import RingBroken
from edl.torch.backward import Backward
from edl.torch.torch_reducer import Manner, Reducer
from edl.trainer.skipped_update import CUT
from edl.trainer.updates_due import UpdatesDue


class Averaging:
    """Which gradients have begun, by name; all workers have the same."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> None:
        self.begun.append(name)

    def expect(self, parameters: Iterable[torch.Tensor]) -> None: ...
    def flush(self) -> None: ...
    def wait(self) -> None: ...
    def drop(self) -> None: ...


class Ring:
    def __init__(self, size: int) -> None:
        self.size, self.place = size, SimpleNamespace(generation=3)
        self.gradients = Averaging()
        self.cuts: list[range] = []

    def averaging(self) -> Averaging:
        return self.gradients

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, RingBroken)

    def abort(self, given_up: range) -> None:
        self.cuts.append(given_up)


class Trainer:
    def __init__(self) -> None:
        self.now, self.said = 1, list[str]()

    @property
    def voided(self) -> bool:
        return bool(self.said)

    def void(self, error: BaseException) -> None:
        self.said.append(str(error))

    def before_reduce(self) -> None: ...
    def waited(self, nanoseconds: int) -> None: ...
    def step(self) -> int:
        return self.now


class Script:
    """A model of two layers, of which the second one's gradients come first, and an optimizer's averaging."""

    def __init__(self, *, size: int = 2, passes: int = 1) -> None:
        self.trainer, self.ring, self.due = Trainer(), Ring(size), UpdatesDue()
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        trainer, ring, self.backward_passes = untyped(self.trainer), untyped(self.ring), Backward(self.due)
        manner = Manner(passes)
        self.reducer = Reducer(trainer, ring, GradientWeight(), self.backward_passes, names, manner)

    def backward(self, *, fails: bool = False) -> None:
        hidden = self.model[0](torch.ones(2, 3))
        if fails:
            hidden.register_hook(fail)
        self.model[1](hidden).mean().backward()

    def caught(self) -> None:
        with pytest.raises(ValueError, match="a bad sample"):
            self.backward(fails=True)

    def gradients(self) -> list[torch.Tensor]:
        return [one.grad for one in self.model.parameters() if one.grad is not None]


def untyped(stand_in: Any) -> Any:
    return stand_in


def fail(_gradient: torch.Tensor) -> None:
    raise ValueError("a bad sample")


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("before", [0, 2], ids="after {} mini-batches".format)
def test_gradients_that_never_came_void_the_mini_batch_as_the_script_drops_the_others(passes: int, before: int) -> None:
    script = Script(passes=passes)
    for _ in range(before * passes):
        script.backward()
        script.reducer.average()
        script.reducer.use()
    for _ in range(passes - 1):
        script.backward()
    assert not script.due.in_backward
    script.caught()
    assert script.due.in_backward, "so that the end of the mini-batch voids it, if the script drops no gradient before"
    script.ring.gradients.begun.clear()
    script.reducer.settle()
    assert script.trainer.said == [f"the gradients were not averaged: {CUT}"]
    assert script.ring.cuts == [range(3, 4)], "the others wait for the rest"
    assert script.ring.gradients.begun == [], "and do not get a part of them"


def test_alone_a_worker_goes_on_with_the_next_backward() -> None:
    script = Script(size=1)
    script.backward()
    script.caught()
    script.reducer.settle()
    script.backward()
    assert script.trainer.said == [] and not script.due.in_backward


def test_what_an_exception_has_left_is_no_part_of_what_comes_again() -> None:
    script = Script()
    script.backward()
    script.model.zero_grad()
    script.caught()
    assert any(one.any() for one in script.gradients())
    script.backward_passes.discard()
    script.reducer.discard()
    assert not any(one.any() for one in script.gradients()) and not script.due.in_backward


def test_gradients_of_passes_that_have_ended_arrive_before_they_are_dropped() -> None:
    """As a script does that leaves an update out, on all workers: those of its last pass are under way."""
    script = Script(passes=2)
    script.backward()
    script.backward()
    script.reducer.settle()
    assert script.trainer.said == [] and len(script.ring.gradients.begun) == 4
