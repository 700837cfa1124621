"""What the averaging of gradients raises that is no broken ring: void in a ring on trial, else the script's to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from edl.collectives.ring_port import GradientWeight
from edl.errors import FAULT, RingBroken, UsageError
from edl.torch.backward import Backward
from edl.torch.torch_reducer import Reducer

CALLS = ["expect", "begin", "flush", "wait"]


class Averaging:
    """It fails at one of its calls."""

    def __init__(self, call: str, error: Exception) -> None:
        self._fails_at, self._error = call, error

    def _called(self, call: str) -> None:
        if call == self._fails_at:
            raise self._error

    def expect(self, parameters: Iterable[torch.Tensor]) -> None:
        self._called("expect")

    def begin(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> None:
        self._called("begin")

    def flush(self) -> None:
        self._called("flush")

    def wait(self) -> None:
        self._called("wait")

    def drop(self) -> None: ...


class Ring:
    size = 2

    def __init__(self, averaging: Averaging, *, on_trial: bool) -> None:
        self._averaging = averaging
        self.on_trial: Callable[[], bool] = lambda: on_trial
        self.broken: list[BaseException] = []

    def averaging(self) -> Averaging:
        return self._averaging

    def is_failure(self, error: BaseException) -> bool:
        self.broken.append(error)
        return isinstance(error, RingBroken)


class Trainer:
    voided = False
    virtual = 0

    def __init__(self) -> None:
        self.said: list[str] = []

    def void(self, error: BaseException) -> None:
        self.voided = True
        self.said.append(str(error))

    def before_reduce(self) -> None: ...
    def waited(self, nanoseconds: int) -> None: ...
    def step(self) -> int:
        return 1


def backward(call: str, error: Exception, *, on_trial: bool) -> tuple[Trainer, Ring, torch.Tensor]:
    trainer, ring = Trainer(), Ring(Averaging(call, error), on_trial=on_trial)
    model: Any = torch.nn.Linear(3, 1)
    names = {parameter: name for name, parameter in model.named_parameters()}
    Reducer(trainer, ring, GradientWeight(), Backward(), names)  # type: ignore[arg-type]
    for _ in range(2):  # the second time gradients take the short way
        model(torch.ones(2, 3)).mean().backward()
    return trainer, ring, model.weight.grad


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("no"), MemoryError("no")], ids=repr)
def test_on_trial_it_makes_the_mini_batch_void_and_breaks_the_ring(call: str, error: Exception) -> None:
    trainer, ring, gradient = backward(call, error, on_trial=True)
    assert set(trainer.said) == {f"the gradients were not averaged: {FAULT}{type(error).__name__}: no"}
    assert ring.broken and all(isinstance(one, RingBroken) for one in ring.broken)
    assert not gradient.any(), "what it has left may be anything"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("error", "on_trial"), [(ValueError("no"), False), (UsageError("no"), True)], ids=repr)
def test_else_the_script_gets_it(call: str, error: Exception, on_trial: bool) -> None:
    with pytest.raises(type(error), match="no"):
        backward(call, error, on_trial=on_trial)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_that_no_ring_averages_are_refused_at_once(dtype: torch.dtype) -> None:
    parameter = torch.zeros(3, dtype=dtype, requires_grad=True)
    ring = Ring(Averaging("", ValueError()), on_trial=False)
    with pytest.raises(UsageError, match=r"edl\.Optimizer: scale is of torch\.float8"):
        Reducer(Trainer(), ring, GradientWeight(), Backward(), {parameter: "scale"})  # type: ignore[arg-type]
    Reducer(Trainer(), ring, GradientWeight(), Backward(), {parameter.detach(): "scale"})  # type: ignore[arg-type]
