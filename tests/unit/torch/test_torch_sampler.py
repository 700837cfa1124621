"""Which pass over the data an `ElasticSampler` asks for, whichever worker comes, goes or dies in between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from edl.errors import UsageError
from edl.torch import elastic
from edl.trainer.elastic_run import Run


class Shards:
    """Three batches in each pass."""

    newest_step = 1

    def __init__(self) -> None:
        self.asked: list[int] = []

    def runs(self, batch: int, number: int) -> Iterator[Iterator[Any]]:
        self.asked.append(number)
        yield iter([np.array([0]), np.array([1])])
        yield iter([np.array([2])])


class Seat:
    """A trainer, and the values that travel."""

    voided = False
    steps_before = 0

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.values = SimpleNamespace()
        self.others: Seat | None = None  # with whose values it begins
        self.at = 1
        self.data = SimpleNamespace(elastic_shard_generator=lambda *_, **__: shards)

    def register(self, **values: Any) -> Any:
        vars(self.values).update(values)
        return self.values

    def begin_batch(self) -> None:
        if self.others is not None:
            vars(self.values).update(copy.deepcopy(vars(self.others.values)))

    def notify_batch_end(self, samples: int | None = None) -> bool:
        self.at += 1
        return True

    def step(self) -> int:
        return self.at

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0

    def generation(self) -> int:
        return 1

    def rehearsing(self) -> bool:
        return False

    def begin_anew(self) -> None: ...

    def void(self, _error: BaseException) -> None: ...

    def expect_restarts(self) -> None: ...

    def on_resize(self, _callback: Any) -> None: ...


class Process:
    """A worker: its sampler, and a state that has it or not."""

    def __init__(self, shards: Shards, patch: pytest.MonkeyPatch, *, given: bool = True) -> None:
        self.seat: Any = Seat(shards)
        self._patch = patch
        self._run = Run(self.seat, SimpleNamespace(is_failure=lambda _: False), lambda: 0)
        self.enter()
        self.sampler = elastic.ElasticSampler(range(12))
        more: dict[str, Any] = {"sampler": self.sampler} if given else {}
        self.state: Any = elastic.TorchState(epoch=1, **more)

    def enter(self) -> None:
        for name, value in (("_run", self._run), ("trainer", self.seat), ("_samplers_of_no_state", [])):
            self._patch.setattr(elastic, name, value)
        self._patch.setattr(elastic.ElasticSampler, "_that_trains", None)

    def loader(self) -> Any:
        dataset: Any = range(12)
        return elastic.DataLoader(dataset, 4, sampler=self.sampler)

    def train(self) -> None:
        """Train a pass."""
        self.enter()
        assert sum(1 for _ in self.loader()) == 3

    def call_function(self, others: Process | None = None) -> None:
        """Begin the training function anew, with the values of all, or of the `others`."""
        self.enter()
        self.seat.others = others and others.seat
        elastic.run(lambda _: None)(self.state)


@pytest.fixture
def shards() -> Shards:
    return Shards()


@pytest.fixture
def new_process(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Process]:
    monkeypatch.setattr("edl.trainer.elastic_run.check_registrable", lambda *_: None)  # of a run that there is not
    return lambda **given: Process(shards, monkeypatch, **given)


@pytest.fixture
def process(new_process: Callable[..., Process]) -> Process:
    return new_process()


def test_each_epoch_is_another_pass(shards: Shards, process: Process) -> None:
    for epoch in range(3):
        process.train()
        process.sampler.set_epoch(epoch + 1)
    for epoch in range(3, 5):  # or said before each
        process.sampler.set_epoch(epoch)
        process.train()
    assert shards.asked == [0, 1, 2, 3, 4]


def test_so_it_is_where_the_script_does_not_say_which_epoch_it_is(shards: Shards, process: Process) -> None:
    for _ in range(3):
        process.train()
    process.sampler.set_epoch(3)
    process.train()
    assert shards.asked == [0, 1, 2, 3]


def test_a_resumed_script_counts_epochs_from_elsewhere(shards: Shards, process: Process) -> None:
    before = elastic.ElasticSampler(range(12))
    before.set_epoch(7)
    process.sampler.load_state_dict(before.state_dict())
    assert process.sampler.epoch == 7
    for epoch in (7, 8):
        process.sampler.set_epoch(epoch)
        process.train()
    assert shards.asked == [0, 1]


def test_a_pass_that_was_left_is_asked_for_again(shards: Shards, process: Process) -> None:
    process.train()
    for _ in process.loader():
        break
    process.train()
    assert shards.asked == [0, 1, 1]


def test_so_is_one_whose_end_was_rolled_back(shards: Shards, process: Process) -> None:
    """As when a worker dies while the epoch is evaluated: the script has not counted it."""
    process.train()
    process.state.restore()
    process.train()
    process.sampler.set_epoch(1)
    process.train()
    assert shards.asked == [0, 0, 1]


def test_a_newcomer_asks_for_the_pass_that_the_others_ask_for(
    shards: Shards, process: Process, new_process: Callable[..., Process]
) -> None:
    newcomer = new_process()
    process.train()
    process.call_function()
    newcomer.call_function(process)  # none of them has said that it is another epoch
    process.train()
    newcomer.train()
    assert shards.asked == [0, 1, 1]


@pytest.mark.parametrize("given", [True, False])
def test_a_sampler_travels_with_the_state_whether_that_is_given_it_or_not(
    shards: Shards, new_process: Callable[..., Process], given: bool
) -> None:
    """As in Horovod's own example, whose state has no sampler: a newcomer came to the end of its epochs at once."""
    one, newcomer = new_process(given=given), new_process(given=given)
    for one.state.epoch in range(1, 4):
        one.sampler.set_epoch(one.state.epoch)
        if one.state.epoch < 3:
            one.train()
    one.enter()
    next(iter(one.loader()))  # the newcomer comes in the middle of this pass
    one.call_function()
    newcomer.sampler.set_epoch(1)
    newcomer.train()  # its rehearsal
    newcomer.call_function(one)
    newcomer.sampler.set_epoch(newcomer.state.epoch)
    newcomer.train()
    assert shards.asked == [0, 1, 2, 0, 2]


def test_a_sampler_that_no_state_has_is_refused_as_it_trains(process: Process) -> None:
    process.sampler = elastic.ElasticSampler(range(12))
    with pytest.raises(UsageError, match="no state has it"):
        next(iter(process.loader()))


def test_a_distributed_sampler_is_refused_in_training_and_in_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows only the size of its making. Evaluation, and what comes after the training function, is torch's."""
    theirs = DistributedSampler(range(4), num_replicas=2, rank=0, shuffle=False)  # type: ignore[arg-type]
    dataset: Any = range(4)
    loader: Any = DataLoader(dataset, batch_size=2, sampler=theirs)
    monkeypatch.setattr(elastic, "_run", lambda function: function)

    @elastic.run
    def train(state: Any) -> list[Any]:
        with torch.no_grad():
            found = [batch.tolist() for batch in loader]
        with pytest.raises(UsageError, match="ElasticSampler"):
            list(loader)
        return found

    state: Any = object()
    assert train(state) == [[0, 2]]
    assert [batch.tolist() for batch in loader] == [[0, 2]]


def test_what_is_recorded_is_counted_of_all_workers(process: Process) -> None:
    sampler, process.seat.size = process.sampler, lambda: 3
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    assert sampler.processed_num == 12
    sampler.set_epoch(1)
    assert sampler.processed_num == 0
