"""A step of an optimizer that evaluates the model itself, void in the midst of it, leaves all as it was before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edl.torch.optimizer import attach

SAMPLES = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Trained:
    """By LBFGS, whose gradients become void at one evaluation."""

    def __init__(self, *, wrapped: bool = True) -> None:
        self.evaluated, self.void_at = 0, 0
        self.model = torch.nn.Linear(4, 1, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(0.5)
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.3, max_iter=4, history_size=3)
        self.reducer: Any = SimpleNamespace(
            average=lambda: None, before_update=lambda: None, use=lambda: None, mean=lambda loss: loss, rate=1.0,
            moot=False, settle=lambda: None, check_closure=lambda once: None,
        )  # fmt: skip
        reducer: Any = self.reducer
        if wrapped:
            attach(self.optimizer, reducer)

    def step(self, void_at: int = 0) -> None:
        self.evaluated, self.void_at, self.reducer.moot = 0, void_at, False
        self.optimizer.step(self._closure)

    def _closure(self) -> torch.Tensor:
        self.evaluated += 1
        self.reducer.moot = self.evaluated == self.void_at
        self.optimizer.zero_grad()
        loss: torch.Tensor = (self.model(SAMPLES) - SAMPLES.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        return loss

    def weights(self) -> list[float]:
        return [value for parameter in self.model.parameters() for value in parameter.flatten().tolist()]


@pytest.mark.parametrize("void_at", [1, 2, 3])
@pytest.mark.parametrize("before", [0, 1, 5], ids="after {} steps".format)
def test_it_comes_again_as_if_it_had_not_been(before: int, void_at: int) -> None:
    alone, voided = Trained(wrapped=False), Trained()
    for _ in range(before):
        alone.step()
        voided.step()
    voided.step(void_at)
    assert voided.evaluated == void_at
    assert voided.weights() == alone.weights()
    for _ in range(2):
        alone.step()
        voided.step()
    assert voided.weights() == alone.weights()
