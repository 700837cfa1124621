"""Make any torch optimizer step by gradients that backward has averaged over the ring.

Owns: what `edl.torch.Optimizer` does to an optimizer. Does not own: the collectives (`edl.torch.torch_reducer`).

The optimizer stays the same object and gets a class that inherits from its own. So `isinstance` holds, and whatever
refers to it already (a learning-rate scheduler, a GradScaler) keeps working, in either order of construction.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any

import torch

from edl.errors import UsageError
from edl.torch.torch_reducer import Reducer


class _SkipUpdate(Exception):
    """Ends a step whose closure met a broken ring, or samples of no worker."""


class _Before:
    """A copy of what an optimizer that evaluates the model itself is about to change: it may have moved the parameters
    by the time that an evaluation is void, and by another number of moves on each worker.
    """

    def __init__(self, optimizer: Any) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._parameters = [(one, one.detach().clone()) for one in parameters]
        self._known = optimizer.state
        self._state = {of: {name: _copied(value) for name, value in kept.items()} for of, kept in self._known.items()}

    def put_back(self) -> None:
        with torch.no_grad():
            for parameter, before in self._parameters:
                parameter.copy_(before)
        self._known.clear()
        self._known.update(self._state)


def _copied(value: Any) -> Any:
    """Copy a tensor, or a list but not its items: what LBFGS has put into its history stays as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return list(value) if isinstance(value, list) else value


class Elastic:
    """A mixin in front of the class of a wrapped optimizer."""

    _edl: Reducer | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let a copy, or what is saved whole, be of the optimizer's own class, which does not average gradients."""
        found: Any = super().__reduce_ex__(protocol)
        _, _, *state = found
        return (_new, (type(self).__bases__[1],), *state)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the averaged gradients, unless the mini-batch is void, or no worker has samples in it."""
        reducer = self._edl
        if reducer is None:
            return super().step(closure)  # type: ignore[misc]
        result: Any = None
        if closure is not None:
            reducer.check_closure(once=_evaluates_once(self))
        if closure is not None and _evaluates_once(self):
            # Before the update, as any backward: what travels beside the mini-batch needs not be through for it.
            with torch.enable_grad():
                result = closure()
            reducer.average()
            result, closure = reducer.mean(result), None
        elif closure is not None:
            closure = functools.partial(_reduced, reducer, closure)
        else:
            reducer.average()
        reducer.before_update()
        if closure is not None or not reducer.moot:
            before = None if closure is None else _Before(self)
            reducer.steps = True
            try:
                with _rates_times(self, reducer.rate):
                    loss = super().step(closure)  # type: ignore[misc]
                    result = result if loss is None else loss
            except _SkipUpdate:
                assert before is not None  # a closure has raised it
                before.put_back()
            finally:
                reducer.steps = False
        reducer.use()
        return result

    step.hooked = True  # type: ignore[attr-defined] # torch must not run the step hooks twice; the inherited step runs them

    def synchronize(self) -> None:
        """Wait until gradients are averaged. backward() has waited for that already, unless in `no_sync()`, or where
        `backward_passes_per_step` is more than one.
        """
        if self._edl is not None:
            self._edl.average()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Kept for scripts written for Horovod; no step reduces twice anyway."""
        yield

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Let backward() only add up gradients here inside the context; the next backward() outside
        averages the sum.
        """
        return contextlib.nullcontext() if self._edl is None else self._edl.paused()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._edl is not None:
            self._edl.settle()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters that the model has had from the start, or that all workers get alike. A newcomer
        takes over groups that were added before it came; where its script adds such a group, too, it is there
        already.
        """
        param_group, parameters = _listed(param_group)
        if self._edl is not None and self._edl.takes_again(parameters):
            return
        super().add_param_group(param_group)  # type: ignore[misc]
        if self._edl is not None:
            last = len(self.param_groups) - 1  # type: ignore[attr-defined]
            for index, parameter in enumerate(self.param_groups[last]["params"]):  # type: ignore[attr-defined]
                self._edl.add(parameter, f"group.{last}.{index}")

    def expect_again(self, group: dict[str, Any]) -> None:
        """`edl.torch.torch_state.Growing`."""
        if self._edl is not None:
            self._edl.expect_again(group["params"])


def _listed(group: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return the same group, and its parameters, which may be given once only."""
    given = group.get("params") if isinstance(group, dict) else None
    if isinstance(given, torch.Tensor):
        return group, [given]
    if given is None or isinstance(given, set):  # which torch refuses
        return group, []
    listed = list(given)
    return {**group, "params": listed}, [one[1] if isinstance(one, tuple) else one for one in listed]


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


@contextlib.contextmanager
def _rates_times(optimizer: Any, factor: float) -> Iterator[None]:
    """Multiply the learning rates by `factor` inside the context; a scheduler never sees that."""
    if factor == 1.0:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _evaluates_once(optimizer: object) -> bool:
    """Tell whether the optimizer calls a closure once, and then has no use for its loss."""
    return not isinstance(optimizer, torch.optim.LBFGS) and type(optimizer).__module__.startswith("torch.optim.")


def _reduced(reducer: Reducer, closure: Callable[[], Any]) -> Any:
    """Call the closure of an optimizer that evaluates the model itself, as LBFGS does; average gradients and loss."""
    with torch.enable_grad():
        loss = closure()
    reducer.average()
    loss = reducer.mean(loss)
    if reducer.moot:
        raise _SkipUpdate
    return loss


def attach(optimizer: torch.optim.Optimizer, reducer: Reducer) -> None:
    """Make `optimizer` average its gradients through `reducer`."""
    tracked = vars(optimizer).pop("step", None)  # a scheduler made before us has wrapped the step of the instance
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (Elastic, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    optimizer._edl = reducer  # type: ignore[attr-defined]
    if tracked is not None:
        optimizer.step = MethodType(_tracked_step, optimizer)  # type: ignore[method-assign]


def release(optimizer: torch.optim.Optimizer) -> None:
    """Let `optimizer` go by this process's own gradients from now on. Harmless to one that was never wrapped."""
    if isinstance(optimizer, Elastic):
        optimizer._edl = None


def _tracked_step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for the step that a scheduler has wrapped: it wants to know that there was a step before its own."""
    optimizer._opt_called = True
    return type(optimizer).step(optimizer, *args, **kwargs)


_tracked_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined] # how the scheduler knows its wrapper


def names_of(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    prefix: str,
) -> dict[torch.Tensor, str]:
    """Return a name for each parameter of `optimizer`, the same on all workers. Raises UsageError."""
    if named_parameters is None:
        named_parameters = model.named_parameters() if model is not None else ()
    known: dict[torch.Tensor, str] = {}
    pair: Any
    for pair in named_parameters:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], torch.Tensor)):
            raise UsageError(
                f"edl.Optimizer: named_parameters has a {type(pair).__name__} in it; "
                "pass pairs of name and parameter, such as model.named_parameters()"
            )
        known[pair[1]] = pair[0]
    names = {
        parameter: prefix + known.get(parameter, f"group.{number}.{index}")
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    }
    if len(set(names.values())) < len(names):
        twice = min(name for name in names.values() if list(names.values()).count(name) > 1)
        raise UsageError(f"edl.Optimizer: named_parameters has two parameters called {twice!r}; names must be unique")
    return names


def check_optimizer(optimizer: object) -> None:
    """Raise UsageError for what cannot be wrapped."""
    if isinstance(optimizer, Elastic):
        raise UsageError("edl.Optimizer: this optimizer is wrapped already; wrap it once")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"edl.Optimizer: optimizer must be a torch.optim.Optimizer, not a {type(optimizer).__name__}")
    if hasattr(optimizer, "skip_synchronize"):
        raise UsageError("edl.Optimizer: this is Horovod's DistributedOptimizer; pass the optimizer that it wraps")


def check_trained(optimizer: torch.optim.Optimizer) -> None:
    """Raise UsageError for an optimizer that has nothing to train."""
    if not any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]):
        raise UsageError(
            "edl.Optimizer: none of this optimizer's parameters requires a gradient, so it has nothing to train; call "
            "requires_grad_() on some of them before"
        )
