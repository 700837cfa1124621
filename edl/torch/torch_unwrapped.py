"""Optimizers of the script that `edl.Optimizer` was not given: nothing averages the gradients of what they train.

Owns: which make updates in this process, and what they train. Does not own: comparing that with the other workers'
(`edl.torch.torch_framework`).

torch calls a hook after each optimizer's step. One that makes updates in several steps of the job trains something that
stays. One that is made anew for each batch, for an inner loop say, belongs to that batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from edl.torch.hand_updates import HandUpdates
from edl.torch.optimizer import Elastic
from edl.torch.torch_state import parameters_of

ONCE, AGAIN = 1, 2


class TorchUnwrapped:
    """The optimizers of one process that `edl.Optimizer` was not given."""

    def __init__(self) -> None:
        # The step after which it was seen first, and whether it was again.
        self._seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._local: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.by_hand = HandUpdates()

    @property
    def any_seen(self) -> bool:
        """The script trains something by itself."""
        return bool(self._seen)

    def note(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Note that `optimizer` has made an update; the job has committed `step`."""
        if isinstance(optimizer, Elastic):
            return
        first, times = self._seen.get(optimizer, (step, ONCE))
        if times == ONCE:
            if optimizer not in self._seen:
                self.by_hand.forget(parameters_of(optimizer))
            self._seen[optimizer] = (first, ONCE if step == first else AGAIN)

    def leave_alone(self, optimizer: torch.optim.Optimizer) -> None:
        """The script says that what it trains is each worker's own."""
        self._local.add(optimizer)

    def all_trained(self) -> Iterator[torch.Tensor]:
        """Return what such optimizers train, of whichever kind they are."""
        return (parameter for optimizer in list(self._seen) for parameter in parameters_of(optimizer))

    def trained(self, averaged: Collection[torch.Tensor]) -> Iterator[tuple[torch.Tensor, str]]:
        """Return what such optimizers train, each with a word that is the same on all workers. Not what is `averaged`
        for another optimizer, which may be inside of this one, or around it.
        """
        staying = [one for one, (_, times) in self._seen.items() if times == AGAIN and one not in self._local]
        for optimizer in staying:
            for number, parameter in enumerate(parameters_of(optimizer)):
                if parameter not in averaged:
                    yield parameter, f"parameter {number} of {type(optimizer).__name__}"


def hook_of(unwrapped: TorchUnwrapped, committed: Any) -> Any:
    """Make a hook for `register_optimizer_step_post_hook` of torch. `committed()`: the job's newest step."""

    def stepped(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not isinstance(optimizer, Elastic):
            unwrapped.note(optimizer, committed())

    return stepped


class InnerUpdates:
    """Updates by an optimizer inside of a wrapped one that never steps itself, as SAM's: they are that one's.

    In a void mini-batch the inner one finds no gradients, so momentum and weight decay change nothing.
    """

    def __init__(self, owners: Mapping[torch.Tensor, Any]) -> None:
        self._owners = owners  # the reducer of each parameter
        self._taken: list[tuple[torch.Tensor, torch.Tensor]] = []

    def before(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Hook for `register_optimizer_step_pre_hook`."""
        self._taken = []
        for reducer in self._of(optimizer):
            reducer.nests = True
            reducer.before_update()
            if reducer.moot:
                mine = [one for one in parameters_of(optimizer) if self._owners.get(one) is reducer]
                self._taken += [(one, one.grad) for one in mine if one.grad is not None]
        for parameter, _ in self._taken:
            parameter.grad = None

    def after(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Hook for `register_optimizer_step_post_hook`."""
        for parameter, gradient in self._taken:
            parameter.grad = gradient
        self._taken = []
        for reducer in self._of(optimizer):
            reducer.use()

    def _of(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        """Return the reducers of what it trains, but for those whose own optimizers are stepping."""
        if isinstance(optimizer, Elastic):
            return []
        found = {self._owners[one]: None for one in parameters_of(optimizer) if one in self._owners}
        return [one for one in found if not one.steps]
