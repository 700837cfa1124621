"""A torch worker for `tests/integration/test_gradients.py`. Arguments: worker id; EDL_RING."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from gradient_cases import CASES, SAMPLES, Case, Ids
from seat import FakeTrainer, serve

from edl.torch.torch_framework import TorchFramework
from edl.torch.torch_process import framework

torch.set_num_threads(1)


class Model:
    """A case in this process, in the ring that stands: as the only model of a job."""

    def __init__(self, case: Case, seed: int = 1) -> None:
        self.case, self.trainer = case, FakeTrainer()
        self.framework = TorchFramework()
        vars(self.framework)["ring"] = framework.ring
        vars(framework.ring)["_optimizers"] = 0
        self.model, self.alone = (_built(case, seed) for _ in range(2))
        groups = case.optimizers(self.model)
        self.optimizers: list[Any] = [torch.optim.SGD(group, lr=0.0) for group in groups]
        for optimizer in self.optimizers:
            self.framework.wrap(self.trainer, optimizer, self.model, None)
        case.begin(self.model)
        case.begin(self.alone)

    def step(self, own: Ids, share: float) -> str:
        """Where gradients are not those of one process: nothing, if they are."""
        self.framework.set_weight(share)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.alone.zero_grad()
        self.case.backward(lambda: self.case.loss(self.model, own), self.optimizers[0])
        self.case.loss(self.alone, list(range(SAMPLES))).backward()
        wrong = [
            f"{name}: {word}"
            for (name, mine), right in zip(self.model.named_parameters(), self.alone.parameters(), strict=True)
            if (word := self._difference(mine.grad, right.grad))
        ]
        for optimizer in self.optimizers:
            optimizer.step()
        self.trainer.notify_batch_end()
        return "; ".join([*wrong, self.trainer.take_error()]).strip("; ")

    def _difference(self, mine: torch.Tensor | None, right: torch.Tensor | None) -> str:
        if mine is None or right is None:
            return (
                ""
                if mine is right
                else f"{'none' if mine is None else 'one'} here, {'none' if right is None else 'one'} alone"
            )
        if mine.is_sparse != right.is_sparse:
            return f"{mine.layout} here, {right.layout} alone"
        one, other = (gradient.to_dense().detach().to(torch.complex128) for gradient in (mine, right))
        if not one.numel():
            return ""
        apart, largest = float((one - other).abs().max()), float(other.abs().max())
        return "" if apart <= self.case.near * max(largest, 1e-3) else f"{apart} apart, of at most {largest}"


def _built(case: Case, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return case.build()


models: list[Model] = []  # one after the other


def begin(name: str, seed: int = 1) -> None:
    models.append(Model(CASES[name], seed))


def weights(seed: int | None = None) -> list[float]:
    """As they are, or as a process alone builds them."""
    newest = models[-1]
    found = newest.model if seed is None else _built(newest.case, seed)
    return torch.cat([one.detach().reshape(-1) for one in found.parameters()]).tolist()


def step(own: Ids, share: float) -> str:
    return models[-1].step(own, share)


def names() -> list[str]:
    return [name for name, case in CASES.items() if os.environ["EDL_RING"] in case.rings]


serve(framework, {"begin": begin, "step": step, "names": names, "weights": weights}, {})
