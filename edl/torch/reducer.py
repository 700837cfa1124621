"""Gradients of one optimizer, averaged over the ring as backward computes them.

Owns: the collectives of a step, from the first gradient to the last. Does not own: applying the update
(`edl.torch.optimizer`), nor what a failure leads to (`edl.runtime.trainer`).

What Horovod's own optimizer does is done here with the same calls, so a step costs the same. What differs: a ring of
one needs no collective, a worker's share of the samples counts, and a failed collective voids the mini-batch (I8)
instead of raising in the middle of backward.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn.parameter import is_lazy

from edl.collectives.guard import plain
from edl.collectives.horovod import HorovodRing
from edl.collectives.share import Share
from edl.errors import RingBroken, UsageError
from edl.runtime.framework import StepPort


class Reducer:
    """One per optimizer. Its life goes in steps: gradients become ready, `finish` waits for them all."""

    def __init__(
        self, trainer: StepPort, ring: HorovodRing, share: Share, names: dict[torch.Tensor, str], passes: int = 1
    ) -> None:
        self._trainer = trainer
        self._ring = ring
        self._share = share
        self._names: dict[torch.Tensor, str] = {}
        self._handles: dict[torch.Tensor, Callable[[], None]] = {}
        self._begun = False  # the first gradient of this step has come
        self._reducing = False  # this step needs collectives, and none has failed yet
        self._factor = 1.0  # what a gradient is multiplied with, so that the average over the ring is the weighted sum
        self._paused = False
        self._passes = passes  # of backward, before a gradient is averaged
        self._passed: Counter[torch.Tensor] = Counter()
        self.updates = 0  # made since the script began
        self.rate = 1.0  # what learning rates are multiplied by in the coming step
        self.finished = False  # by the script's own call of synchronize(): step() need not do it again
        for parameter, name in names.items():
            self.add(parameter, name)

    def add(self, parameter: torch.Tensor, name: str) -> None:
        self._names[parameter] = name
        if parameter.requires_grad and not is_lazy(parameter):  # without a hook: reduced at the end of backward
            parameter.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]

    @property
    def voided(self) -> bool:
        return self._trainer.voided

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, gradients only add up here."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def finish(self) -> None:
        """Waits until all gradients are averaged. A failure voids the mini-batch; the caller asks `voided`."""
        if not self._begun:
            self._begin()
        began = time.perf_counter_ns()
        try:
            self._reduce_missing()
            for wait in self._handles.values():
                wait()
        except hvd.HorovodInternalError as error:
            self._fail(error)
        self._trainer.waited(time.perf_counter_ns() - began)
        self.discard()

    def mean(self, loss: Any) -> Any:
        """The loss of the global batch: an optimizer that looks at its closure's loss must see the same everywhere."""
        if not isinstance(loss, torch.Tensor) or self._ring.size <= 1 or self._trainer.voided:
            return loss
        try:
            share = loss.detach() * self._factor if self._factor else torch.zeros_like(loss)
            return hvd.allreduce(share, name="edl.loss", op=hvd.Average)
        except hvd.HorovodInternalError as error:
            self._fail(error)
            return loss

    def settle(self) -> None:
        """The script drops gradients that are on their way: let them arrive first, as they do on all other ranks."""
        if self._handles:
            self.finish()
        self._passed.clear()
        self._begun = False

    def discard(self) -> None:
        self._handles.clear()
        self._passed.clear()
        self._begun = False

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            if self._paused or not self._is_last_pass(parameter):
                return
            if not self._begun:
                self._begin()
            if not self._reducing:
                return
            if parameter in self._handles:
                raise UsageError(
                    f"edl.Optimizer: a second backward() reached {name} before step(); "
                    "wrap all but the last backward() of a step in `with optimizer.no_sync():`"
                )
            try:
                self._reduce(parameter, name)
            except hvd.HorovodInternalError as error:  # enqueued into a ring that is broken by now
                self._fail(error)

        return ready

    def _is_last_pass(self, parameter: torch.Tensor) -> bool:
        if self._passes == 1:
            return True
        self._passed[parameter] += 1
        return self._passed[parameter] >= self._passes

    def _begin(self) -> None:
        self._begun, self.finished = True, False
        self._trainer.before_reduce()
        size = self._ring.size
        self._reducing = size > 1 and not self._trainer.voided
        self._factor = self._share.factor(size)

    def _reduce(self, parameter: torch.Tensor, name: str) -> None:
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        if gradient.is_sparse:
            self._handles[parameter] = self._reduce_sparse(parameter, gradient, name)
            return
        if self._factor != 1.0:
            _scale(gradient, self._factor)
        # The ring's average of (own share * size * gradient) is the sum of (own share * gradient). The factor cannot be
        # Horovod's prescale_factor: that one has to be the same on all ranks.
        if gradient.is_contiguous():
            handle = hvd.allreduce_async_(gradient, name=name, op=hvd.Average)
            self._handles[parameter] = lambda: hvd.synchronize(handle)
        else:
            self._handles[parameter] = self._reduce_copy(gradient, name)

    def _reduce_copy(self, gradient: torch.Tensor, name: str) -> Callable[[], None]:
        """Horovod wants contiguous memory; channels_last gradients, for one, are not."""
        copy = gradient.contiguous()
        handle = hvd.allreduce_async_(copy, name=name, op=hvd.Average)

        def wait() -> None:
            hvd.synchronize(handle)
            gradient.copy_(copy)

        return wait

    def _reduce_sparse(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str) -> Callable[[], None]:
        """All ranks' rows, side by side. The share is applied to the values."""
        gathering: Any = hvd.sparse_allreduce_async(gradient.mul(self._factor).coalesce(), name=name, op=hvd.Average)

        def wait() -> None:
            parameter.grad = gathering()

        return wait

    def _reduce_missing(self) -> None:
        """Parameters that got no gradient here may have got one on another rank: all take part, with zeros."""
        if len(self._handles) == len(self._names):
            return
        for parameter, name in self._names.items():
            if parameter.requires_grad and parameter not in self._handles:
                if self._reducing:
                    self._reduce(parameter, name)
                elif parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)

    def _fail(self, error: BaseException) -> None:
        self._reducing = False
        self._ring.is_failure(error)  # so that the ring is cut, not left by an agreement that its dead cannot join
        self._trainer.void(RingBroken(f"the gradients were not averaged: {plain(str(error))}"))


def _scale(gradient: torch.Tensor, factor: float) -> None:
    if factor == 0.0:
        gradient.zero_()  # a worker without samples computed on something else, perhaps nan
    else:
        gradient.mul_(factor)
