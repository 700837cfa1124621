"""A model's buffers are those of rank 0 before each mini-batch's first forward pass, as with DistributedDataParallel.

Owns: when they are sent, and which. Does not own: moving them (`edl.torch.torch_state`), nor what a newcomer gets.

Many buffers never change: masks, positions. All go with the first mini-batch in a ring, and with each `PERIOD`-th after
it. With the one that follows, members tell each other which have changed meanwhile, and until the next period only
these go: nothing, where none has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from edl.errors import RingBroken
from edl.protocol.divergence_report import Fingerprint
from edl.torch.tensor_ring import TensorRing
from edl.torch.torch_fingerprints import fingerprints
from edl.torch.torch_state import broadcast_tensors
from edl.trainer.framework_port import StepPort

PERIOD: Final = 100  # mini-batches


class BufferPort(StepPort, Protocol):
    """The part of the trainer that the buffers of a model use."""

    def generation(self) -> int: ...


class OutsideGraphs:
    """A hook that `torch.compile` leaves as it is, with all that it calls: a collective is no part of a graph.

    A model that is pickled with it is loaded with a hook in its place that does nothing, and that needs no edl.
    """

    _torchdynamo_disable = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._disabled: Callable[..., Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, ({}, "get")  # of an empty dict: `get(module, inputs)` returns the inputs

    def __deepcopy__(self, _known: dict[int, Any]) -> OutsideGraphs:
        return self

    def __call__(self, *given: Any) -> Any:
        # Where nothing is compiled, the compiler is not imported: that takes a second.
        if self._disabled is None and (compiler := sys.modules.get("torch._dynamo")) is not None:
            self._disabled = compiler.disable(self._function)
        return (self._disabled or self._function)(*given)


class SharedBuffers:
    """The buffers of one model. Belongs to the training thread."""

    def __init__(self, trainer: BufferPort, ring: TensorRing) -> None:
        self._trainer = trainer
        self._ring = ring
        self._sent = (0, 0)  # with which mini-batch they were, in which generation
        self._times = 0  # in this generation
        self._known: list[Fingerprint] = []  # of all, once all were sent
        self._changing: list[int] = []  # of all: which

    def attach(self, model: torch.nn.Module) -> None:
        """Send the buffers of `model` from now on. Costs a model without buffers nothing."""
        if next(model.buffers(), None) is None:
            return

        def before_forward(part: torch.nn.Module, _given: Any) -> None:
            if part.training and torch.is_grad_enabled() and self._ring.size > 1 and not self._trainer.voided:
                self._send(list(part.buffers()))

        model.register_forward_pre_hook(OutsideGraphs(before_forward))

    def _send(self, buffers: list[torch.Tensor]) -> None:
        """Send what is due, once in each mini-batch: workers may differ in how often they call the model."""
        generation, step = where = self._trainer.generation(), self._trainer.step()
        if where == self._sent or self._ring.place is None:
            return
        self._times = self._times + 1 if generation == self._sent[0] else 0
        self._sent = generation, step
        receive = self._ring.place.rank != 0
        try:
            with torch.no_grad():
                broadcast_tensors(self._ring, self._due(buffers), 0, receive)
                if self._times % PERIOD == 0:
                    self._known = _fingerprints(buffers)
        except RingBroken as error:
            self._ring.is_failure(error)
            self._trainer.void_beside(error)

    def _due(self, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._times % PERIOD == 0:
            return buffers
        if self._times % PERIOD == 1:
            now = _fingerprints(buffers)
            changed = [int(one != before) for one, before in zip(now, self._known, strict=True)]
            self._changing = [place for place, one in enumerate(self._ring.largest(changed)) if one]
        return [buffers[place] for place in self._changing]


def _fingerprints(buffers: list[torch.Tensor]) -> list[Fingerprint]:
    return fingerprints((str(place), buffer) for place, buffer in enumerate(buffers))
