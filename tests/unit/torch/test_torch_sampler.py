"""Which pass over the data an `ElasticSampler` asks for, whichever worker comes, goes or dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from edl.errors import UsageError
from edl.torch import elastic


class Shards:
    """Three batches in each pass."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def runs(self, batch: int, number: int) -> Iterator[Iterator[int]]:
        self.asked.append(number)
        yield iter([0, 1])
        yield iter([2])


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Shards:
    shards = Shards()
    monkeypatch.setattr("edl.torch.torch_process.trainer.elastic_shard_generator", lambda *_, **__: shards)
    monkeypatch.setattr(elastic.ElasticSampler, "_that_trains", None)
    return shards


class Travel:
    """The part of a run that a state knows, and the values that travel."""

    def new_state(self, _state: Any) -> str:
        return "elastic.1"

    def register(self, values: dict[str, Any]) -> Travel:
        self.__dict__.update(values)
        return self

    def on_resize(self, _callback: Any) -> None: ...


@pytest.fixture
def travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "_run", Travel())
    monkeypatch.setattr("edl.trainer.elastic_run.check_registrable", lambda *_: None)  # of a run that there is not


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> elastic.ElasticSampler:
    """Its place travels by hand in most of these tests: it is of some state."""
    monkeypatch.setattr(elastic, "_samplers_of_no_state", [])
    sampler = elastic.ElasticSampler(range(12))
    elastic._samplers_of_no_state.clear()
    return sampler


def train(sampler: elastic.ElasticSampler) -> dict[str, Any]:
    """A pass; what the sampler's values were when the last mini-batch ended."""
    kept: dict[str, Any] = {}
    for run in sampler._runs(4):
        for _ in run:
            kept = sampler._place.state_dict()
    return kept


def test_each_epoch_is_another_pass(shards: Shards, sampler: elastic.ElasticSampler) -> None:
    for epoch in range(3):
        train(sampler)
        sampler.set_epoch(epoch + 1)
    for epoch in range(3, 5):  # or said before each
        sampler.set_epoch(epoch)
        train(sampler)
    assert shards.asked == [0, 1, 2, 3, 4]


def test_so_it_is_where_the_script_does_not_say_which_epoch_it_is(
    shards: Shards, sampler: elastic.ElasticSampler
) -> None:
    for _ in range(3):
        train(sampler)
    sampler.set_epoch(3)
    train(sampler)
    assert shards.asked == [0, 1, 2, 3]


def test_a_resumed_script_counts_epochs_from_elsewhere(shards: Shards, sampler: elastic.ElasticSampler) -> None:
    before = elastic.ElasticSampler(range(12))
    before.set_epoch(7)
    sampler.load_state_dict(before.state_dict())
    assert sampler.epoch == 7
    for epoch in (7, 8):
        sampler.set_epoch(epoch)
        train(sampler)
    assert shards.asked == [0, 1]


def test_a_pass_that_was_left_is_asked_for_again(shards: Shards, sampler: elastic.ElasticSampler) -> None:
    train(sampler)
    for _ in sampler._runs(4):
        break
    train(sampler)
    assert shards.asked == [0, 1, 1]


def test_so_is_one_whose_end_was_rolled_back(shards: Shards, sampler: elastic.ElasticSampler) -> None:
    """As when a worker dies while the epoch is evaluated: the script has not counted it."""
    sampler._place.load_state_dict(train(sampler))
    train(sampler)
    sampler.set_epoch(1)
    train(sampler)
    assert shards.asked == [0, 0, 1]


def test_a_newcomer_asks_for_the_pass_that_the_others_ask_for(shards: Shards, sampler: elastic.ElasticSampler) -> None:
    newcomer = elastic.ElasticSampler(range(12))
    elastic._samplers_of_no_state.clear()
    train(sampler)
    newcomer._place.load_state_dict(sampler._place.state_dict())  # none of them has said that it is another epoch
    train(sampler)
    elastic.ElasticSampler._that_trains = None  # it is another process
    train(newcomer)
    assert shards.asked == [0, 1, 1]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.usefixtures("travel", "sampler")
def test_a_sampler_travels_with_the_state_whether_that_is_given_it_or_not(shards: Shards, given: bool) -> None:
    """As in Horovod's own example, whose state has no sampler: a newcomer came to the end of its epochs at once."""

    def begun() -> tuple[elastic.ElasticSampler, Any]:
        sampler = elastic.ElasticSampler(range(12))
        more: dict[str, Any] = {"sampler": sampler} if given else {}
        return sampler, elastic.TorchState(epoch=1, **more)

    sampler, state = begun()
    newcomer, its_state = begun()
    for state.epoch in range(1, 4):
        sampler.set_epoch(state.epoch)
        if state.epoch < 3:
            train(sampler)
    next(sampler._runs(4))  # the newcomer comes in the middle of this pass
    values = state._values()
    elastic.ElasticSampler._that_trains = None  # it is another process
    newcomer.set_epoch(1)
    train(newcomer)  # its rehearsal
    its_state._become(values)
    newcomer.set_epoch(its_state.epoch)
    train(newcomer)
    assert shards.asked == [0, 1, 2, 0, 2]


@pytest.mark.usefixtures("travel", "shards", "sampler")
def test_a_sampler_that_no_state_has_is_refused_as_it_trains() -> None:
    elastic.TorchState(epoch=1)
    with pytest.raises(UsageError, match="no state has it"):
        train(elastic.ElasticSampler(range(12)))


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


def test_what_is_recorded_is_counted_of_all_workers(monkeypatch: pytest.MonkeyPatch, sampler: Any) -> None:
    monkeypatch.setattr("edl.torch.torch_process.trainer.size", lambda: 3)
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    assert sampler.processed_num == 12
    sampler.set_epoch(1)
    assert sampler.processed_num == 0
