"""Optimizers of the script that `edl.Optimizer` was not given: nothing averages the gradients of what they train.

Owns: which make updates in this process, and what they train. Does not own: comparing that with the other workers'
(`edl.torch.torch_framework`).

torch calls a hook after each optimizer's step. One that makes updates in several steps of the job trains something that
stays. One that is made anew for each batch, for an inner loop say, belongs to that batch.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from edl.torch.optimizer import Elastic
from edl.torch.torch_fingerprints import fingerprints
from edl.torch.torch_state import parameters_of

# A script trains tensors by hand where it gets gradients of them, and changes them without any optimizer. Of all leaf
# tensors that require a gradient, such a tensor is known by two things together between two looks: a
# gradient of it was asked for, and its contents have changed. So an average of the weights, a frozen network and what
# is made anew for each batch are none. What changes between two looks without a gradient is never one, whatever is
# asked of it later: one worker alone may draw what an average of the weights looks at.


CLOSE_LOOKS = 8  # what changes without gradients does so by then
KINDS = frozenset({torch.Tensor, torch.nn.Parameter})  # subclasses may hold no contents of their own


class LeafSeen:
    """A tensor of the script's, and what it held at the last look."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: Callable[[], torch.Tensor | None] = weakref.ref(tensor)
        self.has_gradient = False  # since the last look
        self._held = _digest(tensor)
        self._handle: RemovableHandle | None = None
        self._listen(tensor)

    def look(self, *, closely: bool) -> bool | None:
        """Return whether the tensor is trained, by a gradient and a change since the last look; None: it is not known.
        `closely`: also where it had no gradient, and what it holds is the only sign.
        """
        tensor = self.tensor()
        if tensor is None:
            return False
        had_gradient = self.has_gradient
        if not had_gradient and not closely:
            return None
        if had_gradient and tensor.requires_grad:  # else it is frozen for a while, and no hook can be set
            self.has_gradient = False
            self._listen(tensor)
        before, self._held = self._held, _digest(tensor)
        return None if before == self._held else had_gradient

    def leave_alone(self) -> None:
        """Watch the tensor no longer."""
        if self._handle is not None:
            self._handle.remove()

    def _listen(self, tensor: torch.Tensor) -> None:
        self._handle = tensor.register_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, _gradient: torch.Tensor) -> None:
        """The first gradient says it all: later ones cost nothing."""
        self.has_gradient = True
        self.leave_alone()


class HandUpdates:
    """The tensors of one process that its script trains by hand."""

    def __init__(self) -> None:
        self._candidates: dict[int, LeafSeen] | None = None  # by `id`; None: it was not looked for them yet
        self._looks = 0
        self._trained: dict[int, torch.Tensor] = {}  # kept: at the script's end they are compared, too
        self._own: dict[int, weakref.ref[torch.Tensor]] = {}
        self._early: list[weakref.ref[torch.Tensor]] = []

    def note_living(self) -> None:
        """Note the tensors that live now: they are about to be kept from the collector, which lists them no longer."""
        self._early = [weakref.ref(one) for one in _tensors()]

    def leave_alone(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that the script says these are each worker's own."""
        for tensor in tensors:
            self._own[id(tensor)] = weakref.ref(tensor)
            self.forget([tensor])

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that an optimizer trains these."""
        for tensor in tensors:
            self._trained.pop(id(tensor), None)
            if self._candidates and (candidate := self._candidates.pop(id(tensor), None)) is not None:
                candidate.leave_alone()

    def find(self, known: Collection[int]) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors that are trained by hand, each with a word for it, in an order that is the same on all
        workers whose tensors are equal. `known`: tensors that edl knows of otherwise, by `id`.

        The first call only looks which there are.
        """
        if self._candidates is None:
            early = [tensor for one in self._early if (tensor := one()) is not None]
            leaves = {id(one): one for one in (*early, *_tensors()) if _is_leaf(one) and self._may_be(one, known)}
            self._candidates = {key: LeafSeen(one) for key, one in leaves.items()}
            self._early = []
            return self._found(known)
        self._looks += 1
        for key, candidate in list(self._candidates.items()):
            trained, tensor = candidate.look(closely=self._looks <= CLOSE_LOOKS), candidate.tensor()
            if trained is None:
                continue
            if trained and tensor is not None:
                self._trained[key] = tensor
            candidate.leave_alone()
            del self._candidates[key]
        return self._found(known)

    def _found(self, known: Collection[int]) -> list[tuple[str, torch.Tensor]]:
        found = [one for key, one in self._trained.items() if key not in known]
        return [(_word(one), one) for one in sorted(found, key=lambda one: (_form(one), _digest(one)))]

    def _may_be(self, tensor: torch.Tensor, known: Collection[int]) -> bool:
        own = self._own.get(id(tensor))
        return id(tensor) not in known and (own is None or own() is not tensor)


def _tensors() -> list[torch.Tensor]:
    """List all tensors that live, but for what is kept from the collector. That stays as it is: what the script has
    made by now may yet become a cycle, and holds memory until it is collected.
    """
    return [one for one in gc.get_objects() if type(one) in KINDS]


def _is_leaf(tensor: Any) -> bool:
    plain = tensor.layout is torch.strided and tensor.device.type != "meta"
    return bool(tensor.requires_grad and tensor.is_leaf and tensor.numel() and plain)


def _digest(tensor: torch.Tensor) -> int:
    (found,) = fingerprints([("", tensor)])
    return found.digest


def _word(tensor: torch.Tensor) -> str:
    return (
        f"a tensor ({_form(tensor)}) that the script changes by its gradients without an optimizer, so nothing "
        "averages it: give edl.Optimizer an optimizer of it; or, if it is each worker's own, call edl.local(tensor)"
    )


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


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
        """Tell whether the script trains something by itself."""
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
        """Note that the script says that what `optimizer` trains is each worker's own."""
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
