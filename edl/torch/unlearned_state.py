"""A copy of what is not learned: buffers, which forward passes update by themselves, and hyper-parameters.

Owns: one copy of it, in this process. Does not own: moving it over the ring (`edl.torch.torch_state`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch.nn.modules.batchnorm import _NormBase

from edl.torch.torch_state import hyper_parameters


def statistics(models: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """The parts of them that keep statistics of their forward passes in each worker for itself."""
    return [part for model in models for part in model.modules() if isinstance(part, _NormBase)]


class Rest:
    """Buffers of some modules and hyper-parameters of some optimizers, as they are now."""

    def __init__(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        self._buffers = [
            (model, {name: buffer.detach().clone() for name, buffer in model.named_buffers()}) for model in models
        ]
        self._hyper = [
            (group, copy.deepcopy(hyper))
            for optimizer in optimizers
            for group, hyper in zip(optimizer.param_groups, hyper_parameters(optimizer), strict=True)
        ]

    def put_back(self) -> None:
        with torch.no_grad():
            for model, values in self._buffers:
                for name, buffer in model.named_buffers():  # by name, as a module may put another tensor there
                    if name in values:
                        buffer.copy_(values[name])
        for group, hyper in self._hyper:
            group.update(hyper)
