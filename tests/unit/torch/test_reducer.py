"""Which gradients an update may use: none of a backward() that an exception has ended, nor of earlier mini-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edl.collectives.ring_port import GradientWeight
from edl.errors import RingBroken, UsageError
from edl.torch.backward import Backward
from edl.torch.torch_reducer import Manner, Reducer
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.void_batches import CUT

WAYS = ["averaged", "paused", "passes"]
DROPS = ["optimizer", "none", "zeros"]


class Averaging:
    """Which gradients have begun, by name; all workers have the same."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> None:
        gradient.detach()
        self.begun.append(name)

    def expect(self, parameters: Iterable[torch.Tensor]) -> None: ...
    def flush(self) -> None: ...
    def wait(self) -> None: ...
    def drop(self) -> None: ...


class Ring:
    def __init__(self, size: int) -> None:
        self.size, self.place = size, SimpleNamespace(generation=3)
        self.gradients = Averaging()
        self.cuts: list[range] = []

    def averaging(self) -> Averaging:
        return self.gradients

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, RingBroken)

    def abort(self, given_up: range) -> None:
        self.cuts.append(given_up)


class Trainer:
    def __init__(self) -> None:
        self.now, self.said = 1, list[str]()

    @property
    def voided(self) -> bool:
        return bool(self.said)

    def void(self, error: BaseException) -> None:
        self.said.append(str(error))

    virtual = 0

    def before_reduce(self) -> None: ...
    def waited(self, nanoseconds: int) -> None: ...
    def step(self) -> int:
        return self.now


class Script:
    """A model of two layers, of which the second one's gradients come first, and an optimizer's averaging."""

    def __init__(self, *, size: int = 2, passes: int = 1, single: bool = False, hooked: int | None = None) -> None:
        self.trainer, self.ring, self.due = Trainer(), Ring(size), UpdatesDue()
        model: Any = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        self.model = model
        self.hook: Callable[[torch.Tensor], None] = lambda _parameter: None
        if hooked is not None:
            model[hooked].weight.register_post_accumulate_grad_hook(self.hooked)
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        names = {model[0].weight: "weight"} if single else names
        trainer, ring, self.backward_passes = untyped(self.trainer), untyped(self.ring), Backward(self.due)
        manner = Manner(passes)
        self.share = GradientWeight()
        self.reducer = Reducer(trainer, ring, self.share, self.backward_passes, names, manner)

    def hooked(self, parameter: torch.Tensor) -> None:
        self.hook(parameter)

    def backward(self, *, fails: bool = False) -> None:
        hidden = self.model[0](torch.ones(2, 3))
        if fails:
            hidden.register_hook(fail)
        self.model[1](hidden).mean().backward()

    def trains(self, *, paused: bool = False) -> None:
        """Compute the gradients of one more mini-batch."""
        with self.reducer.paused() if paused else contextlib.nullcontext():
            self.backward()

    def ends(self) -> None:
        self.trainer.now += 1

    def updates(self) -> None:
        self.reducer.average()
        self.reducer.use()

    def drops(self, how: str) -> None:
        if how == "optimizer":
            self.reducer.settle()
        self.model.zero_grad(set_to_none=how == "none")

    def caught(self) -> None:
        with pytest.raises(ValueError, match="a bad sample"):
            self.backward(fails=True)

    def gradients(self) -> list[torch.Tensor]:
        return [one.grad for one in self.model.parameters() if one.grad is not None]


def untyped(stand_in: Any) -> Any:
    return stand_in


def test_with_virtual_workers_an_update_needs_parts_unless_the_mini_batch_is_void() -> None:
    """A library's loop leaves out the parts of a mini-batch that is void before them, and makes its step."""
    script = Script()
    script.trainer.virtual = 4
    with pytest.raises(UsageError, match=r"edl\.microbatches"):
        script.updates()
    script.trainer.void(RingBroken("a peer is gone"))
    script.updates()


def test_with_virtual_workers_only_a_closure_whose_loss_is_not_used_is_taken_and_after_the_parts() -> None:
    script = Script()
    script.trainer.virtual = 4
    with pytest.raises(UsageError, match=r"step\(closure\)"):
        script.reducer.check_closure(once=True)
    script.reducer.begin_parts({})
    script.reducer.note_summed()
    script.reducer.check_closure(once=True)
    assert script.reducer.mean(["a library's"]) == ["a library's"]
    with pytest.raises(UsageError, match=r"step\(closure\)"):
        script.reducer.mean(torch.ones(()))
    with pytest.raises(UsageError, match=r"step\(closure\)"):
        script.reducer.check_closure(once=False)
    script.ends()
    with pytest.raises(UsageError, match=r"step\(closure\)"):
        script.reducer.check_closure(once=True)


def test_a_gradient_after_the_parts_of_a_step_is_refused_and_within_them_frees_the_one_before() -> None:
    script = Script()
    script.trainer.virtual = 4
    before = {id(one): torch.ones(1) for one in script.model.parameters()}
    script.reducer.begin_parts(before)
    script.trains()
    assert not before
    script.reducer.note_summed()
    with pytest.raises(UsageError, match=r"edl\.microbatches"):
        script.trains()


def test_a_step_in_which_no_worker_has_samples_leaves_gradients_of_zero() -> None:
    """A GradScaler that finds none at all takes the script to have forgotten its backward()."""
    script = Script()
    script.share.set(0.0, weightless=True)
    script.trains()
    script.updates()
    assert [bool(gradient.any()) for gradient in script.gradients()] == [False] * 4


def fail(_gradient: torch.Tensor) -> None:
    raise ValueError("a bad sample")


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("before", [0, 2], ids="after {} mini-batches".format)
def test_gradients_that_never_came_void_the_mini_batch_as_the_script_drops_the_others(passes: int, before: int) -> None:
    script = Script(passes=passes)
    for _ in range(before * passes):
        script.backward()
        script.reducer.average()
        script.reducer.use()
    for _ in range(passes - 1):
        script.backward()
    assert not script.due.in_backward
    script.caught()
    assert script.due.in_backward, "so that the end of the mini-batch voids it, if the script drops no gradient before"
    script.ring.gradients.begun.clear()
    script.reducer.settle()
    assert script.trainer.said == [f"the gradients were not averaged: {CUT}"]
    assert script.ring.cuts == [range(3, 4)], "the others wait for the rest"
    assert script.ring.gradients.begun == [], "and do not get a part of them"


def test_alone_a_worker_goes_on_with_the_next_backward() -> None:
    script = Script(size=1)
    script.backward()
    script.caught()
    script.reducer.settle()
    script.backward()
    assert script.trainer.said == [] and not script.due.in_backward


def test_what_an_exception_has_left_is_no_part_of_what_comes_again() -> None:
    script = Script()
    script.backward()
    script.model.zero_grad()
    script.caught()
    assert any(one.any() for one in script.gradients())
    script.backward_passes.discard()
    script.reducer.discard()
    assert not any(one.any() for one in script.gradients()) and not script.due.in_backward


def test_gradients_of_passes_that_have_ended_arrive_before_they_are_dropped() -> None:
    """As a script does that leaves an update out, on all workers: those of its last pass are under way."""
    script = Script(passes=2)
    script.backward()
    script.backward()
    script.reducer.settle()
    assert script.trainer.said == [] and len(script.ring.gradients.begun) == 4


def in_parts(script: Script) -> None:
    script.reducer.begin_parts({})
    script.trains()
    script.reducer.note_summed()


@pytest.mark.parametrize("loops", [1, 2])
def test_with_virtual_workers_a_sum_over_mini_batches_is_refused_as_well(loops: int) -> None:
    """Of its gradients those of the newest mini-batch alone would be left."""
    script = Script()
    script.trainer.virtual = 4
    in_parts(script)
    script.updates()
    script.ends()
    in_parts(script)
    script.ends()
    for _ in range(loops):
        in_parts(script)
    with pytest.raises(UsageError, match="step 3: its gradients are a sum over mini-batches"):
        script.updates()


@pytest.mark.parametrize("how", [*DROPS, "infinite", "updated before"])
def test_with_virtual_workers_gradients_that_are_dropped_or_of_no_use_are_no_sum(how: str) -> None:
    """As those that a GradScaler leaves out; or a discriminator's, which the generator's loss leaves behind."""
    script = Script()
    script.trainer.virtual = 4
    if how == "updated before":
        in_parts(script)
        script.updates()
    in_parts(script)
    if how == "infinite":
        script.gradients()[0].fill_(torch.inf)
    elif how != "updated before":
        script.drops(how)
    script.ends()
    in_parts(script)
    script.updates()


@pytest.mark.parametrize("how", DROPS)
def test_with_virtual_workers_gradients_of_several_mini_batches_may_be_dropped(how: str) -> None:
    script = Script()
    script.trainer.virtual = 4
    for _ in range(3):
        in_parts(script)
        script.ends()
    script.drops(how)
    in_parts(script)
    script.updates()


def test_what_is_held_of_a_gradient_goes_as_the_next_one_comes() -> None:
    script = Script()
    held = dict.fromkeys([*map(id, script.model.parameters()), 0], torch.zeros(1))
    script.reducer.begin_parts(held)
    script.trains(paused=True)
    assert list(held) == [0]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("single", [False, True], ids=["", "one parameter"])
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_over_mini_batches_is_refused(way: str, single: bool, size: int) -> None:
    script = Script(size=size, single=single, passes=2 if way == "passes" else 1)
    script.trains()
    script.updates()
    script.drops("optimizer")
    script.ends()
    script.trains(paused=way == "paused")
    script.ends()
    script.trains()
    with pytest.raises(
        UsageError, match=r"step 3: its gradients are a sum over mini-batches.*notify_batch_end\(\) once"
    ):
        script.updates()


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_an_earlier_mini_batch_are_refused_without_any_of_this_one(way: str) -> None:
    script = Script(passes=2 if way == "passes" else 1)
    script.trains(paused=way == "paused")
    script.ends()
    with pytest.raises(UsageError, match="step 2: its gradients"):
        script.reducer.average()


@pytest.mark.parametrize("single", [False, True], ids=["", "one parameter"])
@pytest.mark.parametrize("how", DROPS)
@pytest.mark.parametrize("way", WAYS)
def test_a_script_that_leaves_out_an_update_and_drops_its_gradients_goes_on(way: str, how: str, single: bool) -> None:
    script = Script(single=single, passes=2 if way == "passes" else 1)
    for _ in range(1 if way == "passes" else 3):  # only the optimizer's own zero_grad() begins a count of passes anew
        script.drops(how)
        script.trains(paused=way == "paused")
        script.ends()
    script.drops(how)
    script.trains()
    script.updates()


@pytest.mark.parametrize("how", DROPS)
@pytest.mark.parametrize("way", ["averaged", "paused"])
def test_gradients_that_add_up_and_are_dropped_before_the_next_are_none_to_refuse(way: str, how: str) -> None:
    """As a discriminator's, in each backward() of the generator's loss."""
    script = Script()
    for _ in range(3):
        script.trains(paused=way == "paused")
        script.ends()
    script.drops(how)
    script.trains()
    script.updates()


def test_parts_of_one_mini_batch_are_added_up() -> None:
    script = Script()
    for _ in range(3):
        script.trains(paused=True)
        script.trains(paused=True)
        script.trains()
        script.updates()
        script.ends()  # gradients stay where they are, and are used again: as the script likes


def test_what_a_void_mini_batch_has_added_up_is_no_part_of_what_comes_again() -> None:
    script = Script()
    script.trains(paused=True)
    script.reducer.discard()
    assert not any(one.any() for one in script.gradients())
    script.trains()
    script.updates()


def test_a_sum_is_refused_though_the_ring_has_changed_meanwhile() -> None:
    script = Script()
    script.trains(paused=True)
    script.ends()
    script.reducer.discard()
    script.trains()
    with pytest.raises(UsageError, match="a sum over mini-batches"):
        script.updates()


@pytest.mark.parametrize("passes_before", [0, 2], ids="after {} passes".format)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_hook_that_takes_gradients_before_they_are_averaged_is_refused(layer: int, passes_before: int) -> None:
    """An update in backward(), whose hook was registered before the optimizer was wrapped."""
    script, taking = Script(hooked=layer), False

    def hook(parameter: torch.Tensor) -> None:
        parameter.grad = None if taking else parameter.grad

    script.hook = hook
    for _ in range(passes_before):
        script.trains()
        script.updates()
    taking = True
    with pytest.raises(UsageError, match=rf"gradient of {layer}\.weight is gone.*registered after edl\.Optimizer"):
        script.trains()
