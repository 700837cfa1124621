"""A torch model's state in two parts, taken over by another model: what it is, what it is not, and when it was torn."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edl.errors import UsageError
from edl.torch.framework import TorchFramework
from edl.trainer import beside
from edl.trainer.beside import Beside
from edl.trainer.extras import Extras


def whole(contents: Any) -> memoryview:
    """As it comes, part by part."""
    found = bytearray()
    while len(found) < contents.size:
        found += contents.part(len(found))
    return memoryview(found)


class Worker:
    """A script's model, after some steps of its own."""

    def __init__(self, seed: int, steps: int, kind: str = "adam", width: int = 300) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(7, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1, bias=seed != 9)
        )
        made: dict[str, Any] = {
            "adam": lambda one: torch.optim.Adam(one, lr=0.1 * (1 + seed), amsgrad=True),
            "sgd": lambda one: torch.optim.SGD(one, lr=torch.tensor(0.1 * (1 + seed)), momentum=0.9),
        }
        self.optimizer = made[kind](self.model.parameters())
        self.framework = TorchFramework()
        self.framework.track(self.optimizer)
        self.framework.track(self.model)
        self.ema = torch.nn.Linear(3, 3)
        self.extras = Extras(self.framework.sort)._add({"ema": self.ema, "losses": [0.5] * seed, "seen": torch.ones(5)})
        self.step(steps)

    def step(self, times: int = 1) -> None:
        for number in range(times):
            self.optimizer.zero_grad()
            self.model(torch.full((4, 7), float(number)) + torch.arange(4.0)[:, None]).square().mean().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        groups = [{key: value for key, value in one.items() if key != "params"} for one in self.optimizer.param_groups]
        state = self.optimizer.state_dict()["state"]
        return {"model": self.model.state_dict(), "groups": groups, "state": state}


def check_equal(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    elif isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            check_equal(value, theirs[key])
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            check_equal(one, other)
    else:
        assert mine == theirs


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("rehearsed", [0, 1, 3])
def test_a_newcomer_is_equal_bit_for_bit_and_stays_so(kind: str, rehearsed: int) -> None:
    root, newcomer = Worker(1, 2, kind), Worker(4, rehearsed, kind)
    parameters = list(newcomer.model.parameters())
    parted = root.framework.apart.parted()
    late = newcomer.framework.apart.take_early(parted.description, memoryview(bytearray(parted.early)))
    tree, raw = root.extras._parted(root.framework.apart)
    newcomer.extras._take(newcomer.framework.apart, 0, tree, memoryview(bytearray(raw)))
    check_equal(newcomer.model[1].running_mean, root.model[1].running_mean)
    assert newcomer.optimizer.param_groups[0]["lr"] == root.optimizer.param_groups[0]["lr"]
    late.take(whole(parted.late))
    assert parted.late.whole()
    check_equal(newcomer.state(), root.state())
    check_equal(newcomer.ema.state_dict(), root.ema.state_dict())
    assert newcomer.extras.losses == [0.5]
    assert all(mine is before for mine, before in zip(newcomer.model.parameters(), parameters, strict=True))
    root.step()
    newcomer.step()
    check_equal(newcomer.state(), root.state())


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_one_that_rehearses_its_entry_takes_over_its_own_state(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, other = Worker(4, 2, kind), Worker(4, 2, kind)
    apart = worker.framework.apart
    taken = monkeypatch_given(monkeypatch, apart)
    Beside(worker.framework, worker.extras).rehearse()
    assert taken == [apart]
    check_equal(worker.state(), other.state())
    worker.step()
    other.step()
    check_equal(worker.state(), other.state())


def test_a_large_state_is_not_copied_for_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(4, 2)
    taken = monkeypatch_given(monkeypatch, worker.framework.apart)
    monkeypatch.setattr(beside, "REHEARSED_BYTES", 100)
    Beside(worker.framework, worker.extras).rehearse()
    assert taken == []


def monkeypatch_given(monkeypatch: pytest.MonkeyPatch, apart: Any) -> list[Any]:
    """As where each update waits; what is returned notes each state that is taken over."""
    taken, take_early = list[Any](), apart.take_early
    monkeypatch.setattr(apart, "given", lambda: True)
    monkeypatch.setattr(apart, "take_early", lambda *parts: (taken.append(apart), take_early(*parts))[1])
    monkeypatch.setattr(TorchFramework, "apart", property(lambda framework: apart))
    return taken


def test_an_update_in_the_middle_is_noticed() -> None:
    root = Worker(1, 2)
    late = root.framework.apart.parted().late
    root.model(torch.ones(4, 7)).sum().backward()
    assert late.whole(), "a forward and a backward pass change nothing of it"
    root.optimizer.step()
    assert not late.whole()


def test_another_model_is_refused_before_anything_changes() -> None:
    parted = Worker(1, 2).framework.apart.parted()
    for other in (Worker(2, 1, width=200), Worker(9, 1)):
        before = {name: one.clone() for name, one in other.model.state_dict().items()}
        with pytest.raises(UsageError, match="All workers must build the same model"):
            other.framework.apart.take_early(parted.description, memoryview(bytearray(parted.early)))
        check_equal(dict(other.model.state_dict()), before)


def test_bytes_that_are_too_few_are_refused() -> None:
    parted, newcomer = Worker(1, 2).framework.apart.parted(), Worker(2, 1)
    late = newcomer.framework.apart.take_early(parted.description, memoryview(bytearray(parted.early)))
    with pytest.raises(UsageError, match="bytes have come for state of"):
        late.take(whole(parted.late)[:-16])
