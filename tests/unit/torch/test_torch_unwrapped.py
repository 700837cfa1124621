"""Optimizers that make updates and were not wrapped: what they train is compared, unless it is another's, or local."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from edl.errors import UsageError
from edl.torch.torch_framework import TorchFramework
from edl.torch.torch_unwrapped import InnerUpdates, TorchUnwrapped, hook_of


def optimizer(*parameters: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2))


def words(unwrapped: TorchUnwrapped, averaged: Any = ()) -> list[str]:
    return [word for _, word in unwrapped.trained(averaged)]


def test_one_that_makes_updates_in_several_steps_trains_what_stays() -> None:
    unwrapped, stays, passes = TorchUnwrapped(), optimizer(weight(), weight()), optimizer(weight())
    unwrapped.note(stays, 0)
    unwrapped.note(stays, 0)  # twice in a step, as of an inner loop
    unwrapped.note(passes, 0)
    assert unwrapped.any_seen and words(unwrapped) == []
    unwrapped.note(stays, 1)
    assert words(unwrapped) == ["parameter 0 of SGD", "parameter 1 of SGD"]


def test_what_is_averaged_for_another_one_is_left_out_and_so_is_what_is_local() -> None:
    unwrapped, first, second = TorchUnwrapped(), weight(), weight()
    inner, local = optimizer(first, second), optimizer(weight())
    unwrapped.leave_alone(local)
    for step in range(2):
        unwrapped.note(inner, step)
        unwrapped.note(local, step)
    assert words(unwrapped, {first: None}) == ["parameter 1 of SGD"]


def test_torch_tells_of_each_step_but_of_those_that_are_wrapped() -> None:
    unwrapped, steps = TorchUnwrapped(), iter(range(10))
    handle = register_optimizer_step_post_hook(hook_of(unwrapped, lambda: next(steps)))
    try:
        one = optimizer(weight())
        one.step()
        one.step()
    finally:
        handle.remove()
    assert words(unwrapped) == ["parameter 0 of SGD"]


def names(framework: TorchFramework, more: Any = ()) -> list[str]:
    return [one.name for one in framework.fingerprints(more) if "not given" in one.name]


def test_what_it_trains_of_a_known_model_says_so_and_what_no_model_has_is_compared_last() -> None:
    framework, body, other = TorchFramework(), torch.nn.Linear(2, 1), weight()
    framework.track(body)
    both = optimizer(body.weight, other)
    for step in range(2):
        framework.unwrapped.note(both, step)
    first, last = names(framework)
    assert first.startswith("weight, parameter 0 of SGD, which edl.Optimizer was not given")
    assert last.startswith("parameter 1 of SGD, which edl.Optimizer was not given") and "edl.local" in last
    assert len(names(framework, [("edl.register(other=...)", other.detach())])) == 1, "it is compared as registered"


def test_what_is_no_optimizer_nor_holds_weights_cannot_be_local() -> None:
    framework: Any = TorchFramework()
    with pytest.raises(UsageError, match="not a dict"):
        framework.leave_alone({})


class Averages:
    """The reducer of a wrapped optimizer."""

    def __init__(self) -> None:
        self.moot = self.steps = self.nests = False
        self.heard: list[str] = []

    def before_update(self) -> None:
        self.heard.append("before")

    def use(self) -> None:
        self.heard.append("use")


def stepping(inner: torch.optim.Optimizer, reducer: Averages, parameter: torch.nn.Parameter) -> torch.Tensor:
    updates = InnerUpdates({parameter: reducer})
    handles = [register_optimizer_step_pre_hook(updates.before), register_optimizer_step_post_hook(updates.after)]
    try:
        inner.step()
    finally:
        for handle in handles:
            handle.remove()
    return parameter.detach().clone()


def test_an_inner_optimizer_changes_nothing_in_a_void_mini_batch() -> None:
    """By momentum or decay, and the script may look at its gradients after that."""
    reducer, trained, own = Averages(), weight(), weight()
    inner = torch.optim.SGD([trained, own], lr=0.1, momentum=0.9, weight_decay=0.1)
    trained.grad, own.grad = torch.ones(2), torch.ones(2)
    before = stepping(inner, reducer, trained)
    assert not torch.equal(before, torch.ones(2))
    reducer.moot, trained.grad, of_own = True, torch.zeros(2), own.detach().clone()
    gradient = trained.grad
    assert torch.equal(stepping(inner, reducer, trained), before) and trained.grad is gradient
    assert not torch.equal(own, of_own), "it is each worker's own"
    reducer.moot = False
    assert not torch.equal(stepping(inner, reducer, trained), before)
    assert reducer.heard == ["before", "use"] * 3
    assert reducer.nests, "from now on what travels beside a mini-batch is through before the script moves weights"


def test_one_that_a_wrapped_optimizer_steps_itself_is_left_alone() -> None:
    reducer, trained = Averages(), weight()
    reducer.steps, trained.grad = True, torch.ones(2)
    stepping(optimizer(trained), reducer, trained)
    assert reducer.heard == []
