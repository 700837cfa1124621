"""Where a backward pass of PyTorch ends, whatever is inside of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from edl.torch.backward import Backward, task_id


class Reduction:
    """Of two parameters; it writes down what happens to it."""

    def __init__(self, backward: Backward, name: str, story: list[str]) -> None:
        self.begun = False
        self.name, self.story, self.backward = name, story, backward
        self.task = -1
        self.number = ord(name)
        self.whole_in = 0
        self.parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, _parameter: torch.Tensor) -> None:
        self.story.append(f"{self.name} gradient")
        if task_id() != self.task:
            self.task = task_id()
            self.backward.reach(self, task_id())

    def begin(self) -> None:
        self.begun = True

    def reduce_missing(self) -> None:
        self.story.append(f"{self.name} missing")

    def wait(self) -> None:
        self.begun = False
        self.story.append(f"{self.name} wait")


class Job:
    def __init__(self) -> None:
        self.story: list[str] = []
        self.backward = Backward()
        self.first, self.second = (Reduction(self.backward, name, self.story) for name in "ab")

    def take(self) -> list[str]:
        story = list(self.story)
        self.story.clear()
        return story


def plain(x: torch.Tensor, job: Job) -> torch.Tensor:
    return x * job.first.parameters[0] * job.first.parameters[1]


def all_inside(x: torch.Tensor, job: Job) -> torch.Tensor:
    return checkpoint(plain, x.clone().requires_grad_(), job, use_reentrant=True)


def first_inside(x: torch.Tensor, job: Job) -> torch.Tensor:
    one, other = job.first.parameters
    return checkpoint(lambda y: y * one, x.clone().requires_grad_(), use_reentrant=True) * other


def last_inside(x: torch.Tensor, job: Job) -> torch.Tensor:
    one, other = job.first.parameters
    return checkpoint(lambda y: y * other, x * one, use_reentrant=True)


def one_in_another(x: torch.Tensor, job: Job) -> torch.Tensor:
    one, other = job.first.parameters
    inner = lambda y: checkpoint(lambda z: z * other, y, use_reentrant=True) * one  # noqa: E731
    return checkpoint(inner, x.clone().requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("model", [plain, all_inside, first_inside, last_inside, one_in_another])
def test_all_gradients_are_there_when_they_are_waited_for(model: Any) -> None:
    job = Job()
    for _ in range(2):
        model(torch.ones(2), job).sum().backward()
        assert job.take() == ["a gradient", "a gradient", "a missing", "a wait"]


def test_what_is_missing_of_all_is_on_its_way_before_any_is_waited_for() -> None:
    """Else two workers whose passes reach the optimizers in another order would wait for each other."""
    job = Job()
    (plain(torch.ones(2), job) * job.second.parameters[0]).sum().backward()
    story = job.take()
    waits = [story.index(f"{name} wait") for name in "ab"]
    assert max(story.index(f"{name} missing") for name in "ab") < min(waits)


def test_gradients_that_are_not_put_anywhere_are_none_to_wait_for() -> None:
    job = Job()
    torch.autograd.grad(plain(torch.ones(2), job).sum(), job.first.parameters)
    assert job.take() == []


def test_a_pass_that_an_exception_has_ended_is_not_waited_for_in_the_next() -> None:
    job = Job()

    def fail(_gradient: torch.Tensor) -> None:
        raise ValueError("as a script may")

    x = torch.ones(2, requires_grad=True)
    hook = job.first.parameters[1].register_hook(fail)
    with pytest.raises(ValueError, match="as a script may"):
        ((x * job.first.parameters[1]) * job.first.parameters[0]).sum().backward()
    hook.remove()
    assert "a gradient" in job.take()
    job.first.begun = False  # the script has dropped its gradients
    job.second.parameters[0].sum().backward()
    assert job.take() == ["b gradient", "b missing", "b wait"]
    plain(torch.ones(2), job).sum().backward()
    assert job.take()[-2:] == ["a missing", "a wait"]
