"""A torch model's state in two parts, taken over by another model: what it is, what it is not, and when it was torn."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edl.core.worker.worker_inputs import StatePortion
from edl.errors import UsageError
from edl.torch.torch_framework import TorchFramework
from edl.torch.torch_snapshot import TorchSnapshot, random_states, restore
from edl.trainer import state_handoff
from edl.trainer.framework_port import Late
from edl.trainer.registered_state import RegisteredState
from edl.trainer.state_handoff import StateHandoff


def whole(contents: Any) -> memoryview:
    """As it comes, part by part."""
    found = bytearray()
    while len(found) < contents.size:
        found += contents.part(len(found))
    return memoryview(found)


def take(late: Late, contents: memoryview) -> None:
    """All of it is here."""
    assert late.unpack is not None
    late.unpack(lambda size: contents[:size])
    late.take(contents)


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
        self.extras = RegisteredState(self.framework.sort)
        self.extras.add({"ema": self.ema, "losses": [0.5] * seed, "seen": torch.ones(5)})
        self.step(steps)

    def step(self, times: int = 1) -> None:
        for number in range(times):
            self.optimizer.zero_grad()
            self.model(torch.full((4, 7), float(number)) + torch.arange(4.0)[:, None]).square().mean().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        named = {"params", "param_names"}
        groups = [{key: value for key, value in one.items() if key not in named} for one in self.optimizer.param_groups]
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
    tree, raw = root.extras.parted(root.framework.apart)
    newcomer.extras.take(newcomer.framework.apart, 0, tree, memoryview(bytearray(raw)))
    check_equal(newcomer.model[1].running_mean, root.model[1].running_mean)
    assert newcomer.optimizer.param_groups[0]["lr"] == root.optimizer.param_groups[0]["lr"]
    take(late, whole(parted.late))
    assert parted.late.whole()
    check_equal(newcomer.state(), root.state())
    check_equal(newcomer.ema.state_dict(), root.ema.state_dict())
    assert newcomer.extras.values["losses"] == [0.5]
    assert all(mine is before for mine, before in zip(newcomer.model.parameters(), parameters, strict=True))
    root.step()
    newcomer.step()
    check_equal(newcomer.state(), root.state())


class Counting(torch.optim.SGD):
    """Keeps something of none of its parameters."""

    def step(self, closure: Any = None) -> Any:
        kept: dict[Any, Any] = self.state
        kept["steps"] = kept.get("steps", torch.zeros(())) + 1
        return super().step(closure)


class Deep:
    """Five layers, an average of all weights, and a schedule."""

    def state(self) -> dict[str, Any]:
        return Worker.state(self)  # type: ignore[arg-type]

    def __init__(self, seed: int, steps: int, kind: str) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(9, 9) for _ in range(4)), torch.nn.Linear(9, 1))
        made: dict[str, Any] = {
            "adam": lambda one: torch.optim.AdamW(one, lr=0.1, amsgrad=True),
            "sgd": lambda one: torch.optim.SGD(one, lr=torch.tensor(0.1), momentum=0.9, nesterov=True),
            "lbfgs": lambda one: torch.optim.LBFGS(one, lr=0.1, max_iter=1),
            "counting": lambda one: Counting(one, lr=0.1, momentum=0.9),
        }
        self.optimizer: Any = made[kind](self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.framework = TorchFramework()
        self.framework.track(self.optimizer)
        self.framework.track(self.model)
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.model, avg_fn=torch.optim.swa_utils.get_ema_avg_fn(0.9), use_buffers=False
        )
        self.extras = RegisteredState(self.framework.sort)
        self.extras.add({"ema": self.ema, "schedule": self.schedule})
        self.step(steps)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.backward()
            self.update()

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.arange(9.0)).square().sum().backward()

    def update(self) -> None:
        self.optimizer.step(lambda: torch.tensor(1.0))
        self.schedule.step()
        self.ema.update_parameters(self.model)

    def averaged(self, root: Deep) -> None:
        """Its own gradients weigh nothing."""
        for mine, theirs in zip(self.model.parameters(), root.model.parameters(), strict=True):
            assert theirs.grad is not None
            mine.grad = theirs.grad.clone()

    def take(self, root: Deep, portion: StatePortion) -> Any:
        """What its script may see before the update; what is returned takes the rest."""
        parted, apart = root.framework.apart.parted(portion), self.framework.apart
        late = apart.take_early(parted.description, memoryview(bytearray(parted.early)))
        if portion.is_first or portion.is_last:
            tree, raw = root.extras.parted(root.framework.apart)
            self.extras.take(apart, 0, tree, memoryview(bytearray(raw)))
        else:
            assert parted.early == b""
        return lambda: (take(late, whole(parted.late)), parted.late.size)[1]


@pytest.mark.parametrize("kind", ["adam", "sgd", "lbfgs", "counting"])
@pytest.mark.parametrize("portions", [[1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [2, 3]])
def test_what_has_come_before_an_update_is_brought_forward_by_it(kind: str, portions: list[int]) -> None:
    """All of the state in as many portions as there are, or the rest of it at once."""
    root, newcomer, first, of = Deep(1, 2, kind), Deep(4, 1, kind), 0, sum(portions)
    sizes = []
    for count in portions:
        portion = StatePortion(first, first + count, of)
        first += count
        take = newcomer.take(root, portion)
        root.backward()
        newcomer.backward()
        newcomer.averaged(root)
        sizes.append(take())
        for worker in (root, newcomer):
            worker.update()
    assert len([size for size in sizes if size]) == min(len(portions), 10)
    check_equal(newcomer.state(), root.state())
    check_equal(newcomer.ema.state_dict(), root.ema.state_dict())
    assert newcomer.schedule.state_dict() == root.schedule.state_dict()


def test_what_the_sender_does_not_keep_is_not_kept_either() -> None:
    root, newcomer = Deep(1, 2, "adam"), Deep(4, 1, "adam")
    for layer in (0, 4):
        del root.optimizer.state[root.model[layer].weight]
    for number in range(2):
        newcomer.take(root, StatePortion(number, number + 1, 2))()
    check_equal(newcomer.state(), root.state())


def test_portions_are_about_as_large_and_all_of_the_state() -> None:
    root = Deep(1, 2, "adam")
    apart = root.framework.apart
    sizes = [apart.parted(StatePortion(number, number + 1, 3)).late.size for number in range(3)]
    assert sum(sizes) == apart.size() == apart.parted().late.size
    assert max(sizes) - min(sizes) <= max(sizes) / 2


class Thawing(Worker):
    """A script that trains its last layer first, and adds the others to its optimizer as it goes on."""

    def __init__(self, seed: int, steps: int, with_names: bool) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(7, 30), torch.nn.Linear(30, 30), torch.nn.Linear(30, 1))
        self.named = (lambda one: one.named_parameters()) if with_names else (lambda one: one.parameters())
        self.model[:2].requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.named(self.model[2]), lr=0.1)
        self.framework = TorchFramework()
        self.framework.track(self.optimizer)
        self.framework.track(self.model)
        self.step(steps)

    def thaw(self, layer: int) -> None:
        self.model[layer].requires_grad_(True)
        self.optimizer.add_param_group({"params": self.named(self.model[layer]), "lr": 0.01 * layer})

    def trained(self) -> list[bool]:
        return [one.requires_grad for one in self.model.parameters()]


@pytest.mark.parametrize("with_names", [True, False])
def test_a_newcomer_has_the_layers_thawed_that_were_before_it_came(with_names: bool) -> None:
    root, newcomer = Thawing(1, 2, with_names), Thawing(4, 1, with_names)
    root.thaw(1)
    root.step()
    root.thaw(0)
    root.model[2].bias.requires_grad_(False)
    parted = root.framework.apart.parted()
    late = newcomer.framework.apart.take_early(parted.description, memoryview(bytearray(parted.early)))
    take(late, whole(parted.late))
    assert newcomer.trained() == root.trained() == [True] * 5 + [False]
    check_equal(newcomer.state(), root.state())
    assert newcomer.optimizer.param_groups[2]["params"][0] is newcomer.model[0].weight
    for worker in (root, newcomer):
        worker.step()
    check_equal(newcomer.state(), root.state())


def test_one_that_has_more_groups_than_the_others_is_refused() -> None:
    root, newcomer = Thawing(1, 2, False), Thawing(4, 1, False)
    newcomer.thaw(1)
    parted = root.framework.apart.parted()
    with pytest.raises(UsageError, match="2 parameter groups here, 1 there"):
        newcomer.framework.apart.take_early(parted.description, memoryview(bytearray(parted.early)))


def test_a_script_that_goes_on_from_a_checkpoint_says_what_it_freezes() -> None:
    before, resumed = Thawing(1, 2, False), Thawing(4, 0, False)
    before.thaw(1)
    before.step()
    snapshot = TorchSnapshot(before.framework)
    pieces = [*snapshot.early, *snapshot.late]

    def fill(number: int, into: memoryview, offset: int = 0) -> None:
        into[:] = bytes(pieces[number].read())[offset : offset + len(into)]

    restore(resumed.framework, snapshot.description, fill)
    check_equal(resumed.state(), before.state())
    assert resumed.trained() == [False] * 4 + [True] * 2


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_one_that_rehearses_its_entry_takes_over_its_own_state(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, other = Worker(4, 2, kind), Worker(4, 2, kind)
    apart = worker.framework.apart
    taken = monkeypatch_given(monkeypatch, apart)
    StateHandoff(worker.framework, worker.extras).rehearse()
    assert taken == [apart]
    check_equal(worker.state(), other.state())
    worker.step()
    other.step()
    check_equal(worker.state(), other.state())


def test_a_large_state_is_not_copied_for_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(4, 2)
    taken = monkeypatch_given(monkeypatch, worker.framework.apart)
    monkeypatch.setattr(state_handoff, "REHEARSED_BYTES", 100)
    StateHandoff(worker.framework, worker.extras).rehearse()
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


def test_random_states_start_no_driver_of_a_script_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes long, and survivors wait where a newcomer comes."""

    def starts() -> bool:
        raise AssertionError("it starts the driver")

    monkeypatch.setattr(torch.cuda, "is_available", starts)
    assert list(random_states()) == ["torch"]
