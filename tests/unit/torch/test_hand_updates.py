"""What a script trains without any optimizer is found by its gradients and its contents, and by both alone."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from edl.torch.torch_fingerprints import fingerprints
from edl.torch.torch_framework import TorchFramework
from edl.torch.torch_unwrapped import HandUpdates


def train(model: torch.nn.Module, x: float = 1.0, *, by_grad: bool = False, forget: bool = False) -> None:
    """One update by hand."""
    loss = model(torch.full((1, 2), x)).sum()
    parameters = list(model.parameters())
    if by_grad:
        gradients = list(torch.autograd.grad(loss, parameters))
    else:
        loss.backward()
        gradients = [one.grad for one in parameters if one.grad is not None]
    for one, gradient in zip(parameters, gradients, strict=True):
        one.data -= 0.1 * gradient  # which no count of torch's own shows
        one.grad = None if forget else one.grad


def model() -> torch.nn.Linear:
    return torch.nn.Linear(2, 1)


def found(framework: TorchFramework, more: Any = ()) -> list[int]:
    """Digests of what is found."""
    return [one.digest for one in framework.fingerprints(more) if "without an optimizer" in one.name]


def own(digests: list[int], *models: torch.nn.Module) -> list[int]:
    """Of each tensor that is of one of the models: which one. Other tests' tensors may live, too."""
    of = {digest(one): number for number, model in enumerate(models) for one in model.parameters()}
    return [of[one] for one in digests if one in of]


def digest(tensor: torch.Tensor) -> int:
    (one,) = fingerprints([("", tensor)])
    return one.digest


@pytest.mark.parametrize("by_grad", [False, True], ids=["backward", "autograd.grad"])
def test_what_has_a_gradient_and_changes_is_found_at_the_second_look(by_grad: bool) -> None:
    framework, trained = TorchFramework(), model()
    train(trained, by_grad=by_grad, forget=True)
    assert own(found(framework), trained) == []
    train(trained, by_grad=by_grad, forget=True)
    assert own(found(framework), trained) == [0, 0]
    assert own(found(framework), trained) == [0, 0], "also without another change since"


def test_an_average_of_weights_and_a_frozen_network_are_none() -> None:
    framework, trained, frozen = TorchFramework(), model(), model()
    average = copy.deepcopy(trained)
    found(framework)
    train(trained)
    frozen(torch.ones(1, 2)).sum().backward()  # it gets gradients and does not change
    with torch.no_grad():
        for mean, one in zip(average.parameters(), trained.parameters(), strict=True):
            mean.lerp_(one, 0.5)
    assert own(found(framework), trained, frozen, average) == [0, 0]


def test_an_average_that_one_worker_alone_sends_gradients_through_is_none() -> None:
    """To draw what it looks at, say: at the first step, and each hundred."""
    framework, average = TorchFramework(), model()
    for step in range(4):
        if step % 3 == 0:
            average(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            average.weight.add_(1.0)
            average.bias.add_(1.0)
        assert own(found(framework), average) == []


def test_what_is_frozen_at_a_look_is_found_by_its_next_change() -> None:
    """As a network of a GAN is while the other one is trained."""
    framework, trained = TorchFramework(), model()
    found(framework)
    trained(torch.ones(1, 2)).sum().backward()
    trained.requires_grad_(False)
    assert own(found(framework), trained) == []
    trained.requires_grad_(True)
    train(trained)
    assert own(found(framework), trained) == [0, 0]


def test_what_gets_its_first_update_late_is_found() -> None:
    framework, trained = TorchFramework(), model()
    for _ in range(12):
        found(framework)
    train(trained)
    assert own(found(framework), trained) == [0, 0]


def test_what_lived_before_edl_was_initialized_is_found_too() -> None:
    framework, trained = TorchFramework(), model()
    framework.note_living()
    gc.freeze()
    found(framework)
    train(trained)
    assert own(found(framework), trained) == [0, 0]


def test_what_has_become_a_cycle_is_collected_after_the_first_look() -> None:
    """It may hold all that a mini-batch has computed."""
    framework, held = TorchFramework(), model()
    held.__dict__["itself"] = [held]
    alive = weakref.ref(held)
    found(framework)
    del held
    gc.collect()
    assert alive() is None


def test_after_the_first_gradient_no_more_of_them_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    framework, trained = TorchFramework(), model()
    register, looked = torch.Tensor.register_hook, list[torch.Tensor]()

    def registered(tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
        def looks(gradient: torch.Tensor) -> None:
            looked.append(tensor)
            hook(gradient)

        return register(tensor, looks)

    monkeypatch.setattr(torch.Tensor, "register_hook", registered)
    found(framework)
    for _ in range(3):
        train(trained)
    assert sum(one is trained.weight for one in looked) == 1
    assert own(found(framework), trained) == [0, 0]


def test_what_edl_knows_of_otherwise_is_left_out() -> None:
    framework, tracked, registered, optimized, local = TorchFramework(), model(), model(), model(), model()
    framework.track(tracked)
    framework.leave_alone(local)
    found(framework)
    for one in (tracked, registered, optimized, local):
        train(one)
    framework.unwrapped.note(torch.optim.SGD(optimized.parameters(), lr=0.1), 1)  # made anew for each batch
    more = [(name, one.detach()) for name, one in registered.named_parameters()]
    assert own(found(framework, more), tracked, registered, optimized, local) == []
    framework.leave_alone(registered.weight)
    assert own(found(framework), registered) == [0] and digest(registered.bias) in found(framework)


def test_the_order_of_what_is_equal_is_the_same_on_all_workers() -> None:
    """Python's collector lists living objects in an order of its own in each process."""

    def order(*values: float) -> list[float]:
        tensors = [torch.full((2,), value, requires_grad=True) for value in values]
        by_hand = HandUpdates()
        by_hand.find(frozenset())
        for one in tensors:
            one.sum().backward()
            one.data += 10.0
        return [float(one[0].detach()) for _, one in by_hand.find(frozenset()) if any(one is own for own in tensors)]

    assert order(3.0, 1.0, 2.0) == order(2.0, 1.0, 3.0)
