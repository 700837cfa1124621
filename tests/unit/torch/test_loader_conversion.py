"""Which DataLoaders become elastic ones, and how the samples of a step are cut into the script's batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from edl.config import Settings
from edl.errors import UsageError
from edl.torch.loader import ElasticDataLoader
from edl.torch.loader_conversion import CollatedParts, ElasticBatches, Order, PartCut, StepParts, converted, order_of
from edl.torch.torch_process import trainer as seat
from edl.trainer.virtual_steps import LoadedParts

DATA = TensorDataset(torch.arange(10))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("samples", "sizes"), [(range(8), [4, 4]), (range(9), [4, 4, 1]), (range(3), [3]), (range(1), [1])]
)
def test_parts_are_the_batches_of_the_script_in_its_order(samples: range, sizes: list[int]) -> None:
    parts = CollatedParts(list, PartCut(4))(samples)
    assert [count for _, count in parts] == sizes
    assert [one for part, _ in parts for one in part] == list(samples)


@pytest.mark.parametrize(
    ("samples", "number", "batches"),
    [
        (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (5, 2, [[0, 1, 2, 3], [4]]),  # as torchrun's worker would have them
        (4, 2, [[0, 1], [2, 3]]),
        (3, 2, [[0, 1, 2]] * 2),
        (1, 2, [[0], [0]]),
        (2, 3, [[0, 1]] * 3),
        (5, 4, [[0, 1], [2, 3, 4]] * 2),
        (9, 3, [[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        (6, 3, [[0, 1], [2, 3], [4, 5]]),
        (9, 4, [[0, 1], [2, 3], [4, 5], [6, 7, 8]]),
        (13, 8, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11, 12]] * 2),
    ],
)
def test_a_step_of_few_samples_has_as_many_batches_as_any(samples: int, number: int, batches: list[list[int]]) -> None:
    """All of its samples come equally often, so the mean of its gradients is theirs."""
    assert [[*part] for part in PartCut(4, number).of(range(samples))] == batches


def test_no_batch_is_larger_than_the_scripts() -> None:
    assert [[*part] for part in PartCut(1, 4).of(range(3))] == [[0], [1], [2], [0]]


def test_batches_that_the_script_wants_full_are_filled_by_samples_of_their_own_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seat.data, "elastic_shard_generator", lambda *_, **__: None)
    assert [[*part] for part in PartCut(4, 2, full=True).of(range(3))] == [[0, 1, 2, 0], [1, 2, 0, 1]]
    assert [[*part] for part in PartCut(4, 1, full=True).of(range(4))] == [[0, 1, 2, 3]]
    loader: DataLoader[Any] = DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 0), drop_last=True)
    (batch, count), *more = converted(loader, 1, 0, as_it_counts=True).loader.collate_fn([(torch.tensor(7),)])
    assert batch[0].tolist() == [7] * 4 and count == 4 and not more
    assert "drop_last" not in caplog.text


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (SequentialSampler(DATA), Order(False, 5)),
        (RandomSampler(DATA), Order(True, 5)),
        (RandomSampler(DATA, generator=torch.Generator().manual_seed(9)), Order(True, 9)),
        (DistributedSampler(DATA, num_replicas=2, rank=1, shuffle=True, seed=3), Order(True, 3)),
        (DistributedSampler(DATA, num_replicas=2, rank=1, shuffle=False), Order(False, 0)),
    ],
    ids=["sequential", "random", "of its own seed", "distributed", "distributed in order"],
)
def test_the_order_is_the_one_of_the_sampler(sampler: Any, order: Order) -> None:
    assert order_of(sampler, 5) == order


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (DataLoader(DATA, sampler=WeightedRandomSampler([0.1] * 10, 10)), "WeightedRandomSampler"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "RandomSampler"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=3)), "RandomSampler"),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2]]), "batch_sampler=list"),
        (DataLoader(DATA, batch_size=None), "batch_size"),
        (DataLoader(Stream()), "is a Stream, which cannot tell its place, so a worker that takes over could not go on"),
        ([1, 2, 3], "not on a list"),
    ],
    ids=["weighted", "with repeats", "a part", "batches", "no batches", "a stream", "no loader"],
)
def test_what_cannot_be_elastic_is_refused_in_one_line(loader: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named) as found:
        converted(loader, 1, 0)
    assert "\n" not in str(found.value)


def test_a_batch_sampler_of_pytorchs_own_is_one_of_the_script() -> None:
    data = Subset(DATA, range(4))
    loader: Any = DataLoader(data, batch_sampler=BatchSampler(WeightedRandomSampler([1.0], 1), 2, drop_last=False))
    with pytest.raises(UsageError, match="WeightedRandomSampler"):
        converted(loader, 1, 0)


def test_a_loader_tells_its_place_and_goes_on_from_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = object.__new__(ElasticDataLoader)
    vars(loader)["_shards"] = type("Shards", (), {"epochs_done": 3})()
    monkeypatch.setattr(type(seat), "steps_before", 40)
    monkeypatch.setattr(seat, "step", lambda: 3)
    assert loader.state_dict() == {"epochs_done": 3, "steps": 42}
    loader.load_state_dict({"steps": 40})
    with pytest.raises(UsageError, match="saved after step 42, and this job goes on from step 40: save the job by"):
        loader.load_state_dict({"steps": 42})


def test_each_part_knows_its_share_and_which_is_the_last_of_its_step() -> None:
    steps: Any = [[("a", 4), ("b", 4)], [("c", 3)], [("d", 4), ("e", 1)]]
    parts = StepParts(steps, 4)
    told = [(batch, parts.share, parts.first, parts.last) for batch in parts]
    assert told == [
        ("a", 0.5, True, False),
        ("b", 0.5, False, True),
        ("c", 1.0, True, True),
        ("d", 0.8, True, False),
        ("e", 0.2, False, True),
    ]


def test_a_loader_of_edls_own_gives_whole_steps() -> None:
    loader: Any = object.__new__(ElasticDataLoader)
    parts = converted(loader, 1, 0)
    assert (parts.loader, parts.share, parts.first, parts.last) == (loader, 1.0, True, True)
    with pytest.raises(UsageError, match="added up over 2 batches"):
        converted(loader, 2, 0)


@pytest.mark.parametrize(("size", "samples", "batches"), [(1, 4, 3), (2, 4, 2), (3, 4, 1), (2, 5, 1), (1, 10, 1)])
def test_a_loaders_length_is_this_workers_batches_in_a_whole_epoch(
    monkeypatch: pytest.MonkeyPatch, size: int, samples: int, batches: int
) -> None:
    """torch asks the loader's batch sampler, whose runs are as long as leases happen to be."""
    monkeypatch.setattr(seat.data, "elastic_shard_generator", lambda *_, **__: None)
    loader = ElasticDataLoader(DATA, samples)
    monkeypatch.setattr(seat, "size", lambda: size)
    assert (
        len(loader) == len(StepParts(loader)) == len(ElasticBatches(StepParts(loader), lambda batch: batch)) == batches
    )
    assert len(StepParts(loader, samples=2)) == -(-10 // (2 * size))


class Parts:
    """The trainer's loop over two parts, which goes through them once more, as a scale did not suffice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.newest = ""
        monkeypatch.setattr(seat.data, "microbatches", lambda _step: self.loop())
        monkeypatch.setattr(seat.data, "begin_part", lambda: self.begun.append(self.newest))

    def loop(self) -> Iterator[tuple[list[tuple[str, int]], float]]:
        for self.newest, part in [("v0", [("a", 4), ("b", 2)]), ("v1", [("c", 4)])] * 2:
            yield part, 1.0


def test_the_batches_of_virtual_workers_are_all_once_the_last_backward_has_them_added_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_trainer = Parts(monkeypatch)
    steps: Any = [LoadedParts({}, 10)]
    parts, told = StepParts(steps, 4), []
    for batch in parts:
        before = (batch, parts.share, parts.first, parts.last)
        parts.note_backward()
        told.append((*before, parts.last))
    assert told == [
        ("a", 4 / 6, True, False, False),
        ("b", 2 / 6, False, False, False),
        ("c", 1.0, False, False, False),
        ("a", 4 / 6, False, False, False),
        ("b", 2 / 6, False, False, False),
        ("c", 1.0, False, False, True),
    ]
    assert of_trainer.begun == ["v0", "v1", "v0", "v1"]  # again, after the body of the batch before


def test_a_batch_of_virtual_workers_needs_one_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    Parts(monkeypatch)
    steps: Any = [LoadedParts({}, 10)]
    parts = StepParts(steps, 4)
    batches = iter(parts)
    next(batches)
    parts.note_backward()
    with pytest.raises(UsageError, match=r"once more in one batch.*add up the losses of a batch"):
        parts.note_backward()
    next(batches)
    with pytest.raises(UsageError, match=r"this batch has had no backward\(\)"):
        next(batches)


def test_a_part_is_begun_anew_where_the_loop_has_done_other_things_since_it_was_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that looks for the next batch before it validates: that draws random numbers, here more, there less."""
    of_trainer = Parts(monkeypatch)
    steps: Any = [LoadedParts({}, 10)]
    parts, begun = StepParts(steps, 4), []
    for _ in parts:
        of_trainer.begun.clear()
        monkeypatch.setattr(seat.seating, "settings", Settings(virtual_workers=2))
        begun.append((parts.begin_part(), list(of_trainer.begun)))
        parts.note_backward()
    assert begun == [(True, ["v0"]), (False, []), (True, ["v1"])] * 2


def test_a_loader_of_edls_own_gives_the_batch_of_each_virtual_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat.data, "microbatches", lambda _step: iter([("v0", 1.0), ("v1", 1.0)]))
    monkeypatch.setattr(seat.data, "begin_part", lambda: None)
    steps: Any = [LoadedParts({}, 10)]
    parts, found = StepParts(steps), []
    for batch in parts:
        found.append((batch, parts.share))
        parts.note_backward()
    assert found == [("v0", 1.0), ("v1", 1.0)]


def test_with_virtual_workers_a_loaders_length_is_the_steps_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat.data, "elastic_shard_generator", lambda *_, **__: None)
    loader = ElasticDataLoader(DATA, 2)
    monkeypatch.setattr(seat.seating, "settings", Settings(virtual_workers=3))
    monkeypatch.setattr(seat, "size", lambda: 2)
    assert len(loader) == 2


def test_loops_that_end_steps_by_themselves_refuse_virtual_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `edl.prepare` and `edl torchrun`."""
    monkeypatch.setattr(seat.seating, "settings", Settings(virtual_workers=4))
    with pytest.raises(
        UsageError, match=r"cannot take the parts of virtual workers: start it without --virtual-workers"
    ):
        converted(DataLoader(DATA), 1, 0)
