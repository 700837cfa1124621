"""PyTorch behind the runtime's port.

Owns: what the script has wrapped, and torch's ring. Does not own: the steps (`edl.torch.reducer`), nor moving state
(`edl.torch.state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import horovod.torch as hvd
import torch
from torch.nn.parameter import is_lazy

from edl.collectives.horovod import HorovodRing, prepare_environment
from edl.collectives.share import Share
from edl.errors import UsageError
from edl.runtime.framework import StepPort
from edl.torch.optimizer import attach, check_optimizer, names_of
from edl.torch.reducer import Reducer
from edl.torch.state import synchronize


class TorchBytes:
    """`edl.collectives.horovod.Bytes` with torch's tensors."""

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        tensor = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        hvd.broadcast_(tensor, root, name=name)
        return tensor.numpy().tobytes()

    def largest(self, value: int, name: str) -> int:
        return int(hvd.allreduce_(torch.tensor([value], dtype=torch.int64), op=hvd.Max, name=name).item())


def _failed(error: BaseException) -> bool:
    return isinstance(error, hvd.HorovodInternalError)


class TorchFramework:
    """`edl.runtime.framework.Framework`, once per process."""

    name = "torch"

    def __init__(self) -> None:
        prepare_environment()
        self.ring = HorovodRing("horovod.torch", TorchBytes(), _failed)
        self._share = Share()
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._reducers: list[Reducer] = []

    def wrap(
        self,
        trainer: StepPort,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    ) -> None:
        """Carries out `edl.torch.Optimizer`."""
        check_optimizer(optimizer)
        if model is not None and not isinstance(model, torch.nn.Module):
            raise UsageError(f"edl.Optimizer: model must be a torch.nn.Module, not a {type(model).__name__}")
        prefix = f"{len(self._optimizers)}." if self._optimizers else ""
        reducer = Reducer(trainer, self.ring, self._share, names_of(optimizer, model, named_parameters, prefix))
        attach(optimizer, reducer)
        self._optimizers.append(optimizer)
        self._reducers.append(reducer)
        if model is not None and not any(model is known for known in self._models):
            self._models.append(model)

    # ------------------------------------------------------------------------------------- the runtime's port

    @property
    def built(self) -> bool:
        return not any(is_lazy(tensor) for _, tensor in self.tensors())

    def synchronize(self, root: int) -> int:
        if not self.built:
            raise UsageError(
                "edl.Optimizer(model=...): a lazy module has no parameters yet; run a batch through it first"
            )
        return synchronize(self, self.ring, root)

    def set_weight(self, weight: float) -> None:
        self._share.set(weight)

    def discard(self) -> None:
        for reducer in self._reducers:
            reducer.discard()

    # -------------------------------------------------------------------------------------- what is the state

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        seen: set[int] = set()
        for number, model in enumerate(self._models):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                seen.add(id(tensor))
                yield f"{number}.{name}", tensor
        for number, optimizer in enumerate(self._optimizers):
            for group_number, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) not in seen:
                        yield f"optimizer.{number}.group.{group_number}.{index}", parameter

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self._optimizers
