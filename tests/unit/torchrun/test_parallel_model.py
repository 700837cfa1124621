"""DistributedDataParallel without a process group: what scripts do with it."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as TorchParallel

from edl.errors import UsageError
from edl.torch.buffers import OutsideGraphs
from edl.torchrun import parallel_model
from edl.torchrun.parallel_model import DistributedDataParallel, GradientPauses


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    DistributedDataParallel.known.clear()


def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Linear(2, 1), find_unused_parameters=True)


def test_it_is_torchs_to_isinstance_and_issubclass() -> None:
    assert isinstance(model(), TorchParallel) and issubclass(DistributedDataParallel, TorchParallel)


def test_it_calls_the_module_and_its_state_has_the_prefix() -> None:
    wrapped = model()
    given = torch.ones(3, 2)
    assert torch.equal(wrapped(given), wrapped.module(given))
    assert [*wrapped.state_dict()] == ["module.weight", "module.bias"]
    wrapped.load_state_dict(wrapped.state_dict())
    assert wrapped.eval().module.training is False


def test_it_can_be_copied_and_saved() -> None:
    wrapped, file = model(), io.BytesIO()
    twin = copy.deepcopy(wrapped)
    assert torch.equal(twin.module.weight, wrapped.module.weight) and twin.module is not wrapped.module
    torch.save(wrapped.state_dict(), file)


def test_a_forward_pass_of_training_begins_a_mini_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    began = list[bool]()
    monkeypatch.setattr(DistributedDataParallel, "began", staticmethod(lambda one: began.append(one.training)))
    wrapped = model()
    wrapped(torch.ones(1, 2))
    with torch.no_grad():
        wrapped(torch.ones(1, 2))
    wrapped.eval()(torch.ones(1, 2))
    assert began == [True]


@pytest.mark.slow
def test_a_compiled_model_still_tells_of_each_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    began = list[bool]()

    def begin(_model: DistributedDataParallel) -> None:
        began.append(torch.compiler.is_compiling())

    wrapped = model()
    monkeypatch.setattr(DistributedDataParallel, "began", staticmethod(OutsideGraphs(begin)))
    compiled = torch.compile(wrapped, backend="eager")
    for _ in range(3):
        compiled(torch.ones(1, 2))
    assert began == [False] * 3


def test_gradients_only_add_up_where_the_script_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped, pauses, paused, told = model(), GradientPauses(), list[bool](), list[bool]()

    @contextlib.contextmanager
    def adding_up() -> Iterator[None]:
        paused.append(True)
        yield
        paused.pop()

    monkeypatch.setattr(parallel_model, "framework", SimpleNamespace(adding_up=adding_up))

    def follow() -> None:
        pauses.follow(wrapped)
        told.append(bool(paused))

    with wrapped.no_sync():
        follow()
        follow()
    follow()
    wrapped.require_backward_grad_sync = False
    follow()
    wrapped.require_backward_grad_sync = True
    follow()
    assert told == [True, True, False, True, False]


def test_what_it_cannot_do_is_one_line() -> None:
    wrapped = model()
    for act in (lambda: wrapped.register_comm_hook(None, None), wrapped.join):
        with pytest.raises(UsageError, match="leave it away"):
            act()
    with pytest.raises(RuntimeError, match="not needed"):
        DistributedDataParallel(torch.nn.ReLU())
