"""Which of a script's passes is which epoch of the job: on a worker of the beginning, and on a newcomer."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from edl.errors import UsageError
from edl.torchrun import script_passes
from edl.torchrun.script_passes import PLACE, SETS_EPOCH, Loaders, LoopPlace, Passes, _check_library, _evaluated
from edl.torchrun.script_trial import TrialLoaders

TOTAL, BATCH = 8, 4


class Group:
    def __init__(self, *, joined: bool, epoch: int = 0) -> None:
        self.joined, self.epoch, self.passes_over = joined, epoch, False

    @property
    def alone(self) -> bool:
        return not self.joined or self.passes_over

    def rank(self) -> int:
        return 0 if self.joined else 2

    def size(self) -> int:
        return 2

    def epoch_beside(self) -> int:
        return self.epoch


class Job:
    """What stands for the rest of edl: batches of `steps` an epoch, and what was registered."""

    def __init__(self, group: Group, steps: int = 2) -> None:
        self.group, self.steps = group, steps
        self.registered = SimpleNamespace()
        self.of_step = 1  # batches
        self.joins: LoopPlace | None = None  # the others' place: a newcomer is where they are after its rehearsal
        self.first = True
        self.between = self.voided = False
        self.made = 0  # updates
        self.ended = 0  # steps
        self.parts = SimpleNamespace(first=True, last=False)

    def step(self) -> int:
        return self.ended + 1

    def updates(self) -> int:
        return self.made

    def register(self, **values: Any) -> Any:
        vars(self.registered).update(values)
        return self.registered

    def on_resize(self, _callback: Any) -> None:
        pass

    def epoch(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        if self.joins is not None and self.first:
            self.first = False
            yield "rehearsal"
            self.group.joined = True
            setattr(self.registered, PLACE, self.joins.copy())
        for number in range(self.steps):
            self.parts.first = number % self.of_step == 0
            self.parts.last = (number + 1) % self.of_step == 0 or number + 1 == self.steps
            yield number
            self.ended += self.parts.last


class Script:
    def __init__(self, told: list[str]) -> None:
        self.told, self.calls = told, list[str]()

    def trains(self) -> bool:
        return True

    def begin_pass(self) -> None:
        pass

    def adds_up(self) -> bool:
        return True

    def kept(self) -> Any:
        return lambda: self.told.append("put back")

    def take_numbers(self) -> None:
        self.calls.append("take numbers")

    def end_pass(self) -> None:
        self.told.append("end")


@pytest.fixture
def _torchs_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put torch's own names back after the test."""
    for owner, names in ((DataLoader, ("__iter__", "__len__")), (DistributedSampler, ("set_epoch", "__init__"))):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(job: Job, parts: int = 1, seed: int = 0) -> tuple[Passes, DataLoader[Any], list[str]]:
        told, job.of_step = list[str](), parts
        loader: DataLoader[Any] = DataLoader(
            list(range(TOTAL)),  # type: ignore[arg-type]
            BATCH,
            sampler=DistributedSampler(range(TOTAL), 2, 0, seed=seed),  # type: ignore[arg-type]
        )
        inner = SimpleNamespace(shards=None, samples_of_step=BATCH, order_by=lambda _order: None)
        monkeypatch.setattr(script_passes, "trainer", job)
        monkeypatch.setattr(script_passes, "framework", job)
        monkeypatch.setattr(script_passes, "converted", lambda *_given, **_named: SimpleNamespace(loader=inner))
        monkeypatch.setattr(script_passes, "ElasticBatches", lambda *_given: job)
        return Passes(loader, job.group, Script(told), parts), loader, told  # type: ignore[arg-type]

    return make


def trained(job: Job, batches: Iterator[Any]) -> Iterator[Any]:
    """Make an update of so many batches."""
    for batch in batches:
        job.made += 1
        yield batch


def index(passes: Passes) -> int:
    """Return the number of the newest batch in its pass."""
    return passes.place["given"] - 1


def passes_of(job: Job, passes: Passes, loader: DataLoader[Any], epochs: int, *, sets: bool) -> list[list[Any]]:
    found = []
    for epoch in range(epochs):
        if sets:
            setattr(loader.sampler, SETS_EPOCH, True)
            loader.sampler.epoch = epoch  # type: ignore[attr-defined]
        found.append([*trained(job, passes.iterate(loader))])
    return found


@pytest.mark.parametrize("sets", [True, False])
def test_a_worker_of_the_beginning_has_all_of_each_epoch(made: Any, sets: bool) -> None:
    job = Job(Group(joined=True))
    passes, loader, told = made(job)
    assert passes_of(job, passes, loader, 3, sets=sets) == [[0, 1]] * 3
    assert passes.place == {"number": 2, "given": 2, "told": 0, "size": 2, "first": 0, "sets_epoch": sets, "seed": 0}
    assert told == ["end"] * 3


@pytest.mark.parametrize("sets", [True, False])
def test_a_newcomer_passes_over_what_is_done_before_it_rehearses(made: Any, sets: bool) -> None:
    job = Job(Group(joined=False, epoch=3))
    job.joins = LoopPlace(number=3, given=5, told=0, size=2, first=0, sets_epoch=sets, seed=0)
    passes, loader, told = made(job)
    assert passes_of(job, passes, loader, 5, sets=sets) == [[], [], [], ["rehearsal", 0, 1], [0, 1]]
    assert told == ["end"] * 2 and not job.group.passes_over


def test_where_the_others_have_come_farther_it_passes_over_these_too(made: Any) -> None:
    job = Job(Group(joined=False, epoch=1))
    job.joins = LoopPlace(number=3, given=5, told=0, size=2, first=0, sets_epoch=True, seed=0)
    passes, loader, told = made(job)
    found, alone = list[list[Any]](), list[bool]()
    for epoch in range(5):
        setattr(loader.sampler, SETS_EPOCH, True)
        loader.sampler.epoch = epoch
        found.append([])
        for batch in trained(job, passes.iterate(loader)):
            found[-1].append((index(passes), batch))
        alone.append(job.group.alone)
    assert found == [[], [(0, "rehearsal")], [], [(5, 0), (6, 1)], [(0, 0), (1, 1)]]
    assert alone == [True, True, True, False, False]
    assert told == ["put back", "end", "end"], "what it did to schedules meanwhile, once"


def test_a_newcomer_counts_batches_on_from_where_the_others_are(made: Any) -> None:
    job = Job(Group(joined=False))
    job.joins = LoopPlace(number=0, given=7, told=0, size=2, first=0, sets_epoch=False, seed=0)
    passes, loader, _ = made(job)
    found = [(index(passes), batch) for batch in trained(job, passes.iterate(loader))]
    assert found == [(0, "rehearsal"), (7, 0), (8, 1)]
    assert [index(passes) for _ in trained(job, passes.iterate(loader))] == [0, 1]


def test_numbers_have_come_before_the_script_has_a_batch(made: Any) -> None:
    job = Job(Group(joined=True))
    passes, loader, _ = made(job)
    for batch in trained(job, passes.iterate(loader)):
        passes._script.calls.append(f"train on {batch}")
    assert passes._script.calls == ["take numbers", "train on 0", "take numbers", "train on 1"]


def test_a_newcomer_that_is_beyond_the_others_is_refused(made: Any) -> None:
    job = Job(Group(joined=False))
    job.joins = LoopPlace(number=0, given=1, told=0, size=2, first=0, sets_epoch=True, seed=0)
    passes, loader, _ = made(job)
    setattr(loader.sampler, SETS_EPOCH, True)
    loader.sampler.epoch = 2
    with pytest.raises(UsageError, match="begins with epoch 2, and the others are in epoch 0"):
        [*passes.iterate(loader)]


def test_a_script_that_adds_up_gradients_is_told_of_how_many_batches(made: Any) -> None:
    job = Job(Group(joined=True))
    passes, loader, _ = made(job)

    def train() -> None:
        for _ in passes.iterate(loader):
            job.made += (index(passes) + 1) % 3 == 0

    with pytest.raises(UsageError, match=r"one update of 3 batches.*--accumulate 3`"):
        train()


def test_a_whole_step_without_an_update_is_not_left_out(made: Any) -> None:
    job = Job(Group(joined=True), steps=3)
    passes, loader, told = made(job, parts=3)
    assert [*passes.iterate(loader)] == [0, 1, 2]
    assert told == ["end"]


def test_an_update_before_the_last_batch_of_a_step_is_refused(made: Any) -> None:
    """As of a script whose number of batches changes from epoch to epoch."""
    job = Job(Group(joined=True), steps=6)
    passes, loader, _ = made(job, parts=3)

    def train() -> None:
        for _ in passes.iterate(loader):
            job.made += 1

    with pytest.raises(UsageError, match=r"an update of 1 batches, and a step of the job is 3 \(--accumulate\)"):
        train()


def test_a_script_that_sets_the_same_epoch_each_time_goes_through_all_passes(made: Any) -> None:
    job = Job(Group(joined=False, epoch=2))
    job.joins = LoopPlace(number=2, given=0, told=0, size=2, first=0, sets_epoch=True, seed=0)
    passes, loader, _ = made(job)
    setattr(loader.sampler, SETS_EPOCH, True)
    found = [[*trained(job, passes.iterate(loader))] for _ in range(3)]
    assert [bool(batches) for batches in found] == [False, False, True]


def test_samples_are_in_the_order_of_the_others_seed(made: Any) -> None:
    """A newcomer's script may have drawn another one, where it was alone."""
    orders = []
    for mine, theirs in ((7, 7), (3, 7), (3, 3)):
        job = Job(Group(joined=True))
        passes, _, _ = made(job, seed=mine)
        passes.place["seed"] = theirs
        orders.append(passes.samples_of(0, slice(None)).tolist())
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("trains", [False, True])
def test_a_second_loader_is_for_evaluation_and_training_on_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, trains: bool
) -> None:
    job = Job(Group(joined=True))
    monkeypatch.setattr(script_passes, "framework", job)

    def evaluate() -> list[Any]:
        return [*trained(job, _evaluated(iter("abc")))] if trains else [*_evaluated(iter("abc"))]

    if trains:
        with pytest.raises(UsageError, match=r"second DataLoader.*ConcatDataset"):
            evaluate()
    else:
        assert evaluate() == ["a", "b", "c"]


@pytest.mark.parametrize("ahead", [0, 1], ids="{} batches are read ahead".format)
def test_whatever_the_script_enumerates_counts_training_batches_as_the_others_do(made: Any, ahead: int) -> None:
    job = Job(Group(joined=False), steps=4)
    job.joins = LoopPlace(number=0, given=7, told=0, size=2, first=0, sets_epoch=False, seed=0)
    passes, loader, _ = made(job)
    loaders = Loaders(job.group, Script([]))  # type: ignore[arg-type]
    loaders.passes = passes

    def logged(batches: Iterator[Any]) -> Iterator[Any]:
        """As a script's own generator does, or a library's that reads ahead."""
        held: list[Any] = []
        for batch in batches:
            held.append(batch)
            if len(held) > ahead:
                yield held.pop(0)
        yield from held

    found = [*loaders.counted(logged(trained(job, passes.iterate(loader))), 1)]
    assert found[-4 + ahead :] == [(8 + number, number) for number in range(ahead, 4)]
    assert [*loaders.counted(logged(iter("ab")))] == [(0, "a"), (1, "b")]
    assert [*loaders.counted(["a"], 3)] == [(3, "a")]


@pytest.mark.parametrize(("parts", "told", "numbers"), [(1, 2, [0, 1, 1, 1, 1]), (2, 3, [0, 1, 2, 3, 2]), (2, 0, None)])
def test_no_batch_has_a_number_that_the_script_was_not_told_of(
    made: Any, parts: int, told: int, numbers: list[int] | None
) -> None:
    """An epoch has more batches than a script was told of where a worker was lost; the last numbers come again."""
    job = Job(Group(joined=True), steps=5)
    passes, loader, _ = made(job, parts)
    loaders = Loaders(job.group, Script([]), parts)  # type: ignore[arg-type]
    loaders.passes = passes
    if told:
        loaders.tell(loader, told)
    found = []
    for number, _batch in loaders.counted(passes.iterate(loader), 10):
        job.made += len(found) % parts == parts - 1
        found.append(number - 10)
    assert found == (numbers or [*range(5)])


@pytest.mark.parametrize("remembered", [0, 1], ids="at batch {} of the step".format)
def test_a_place_that_is_put_back_where_a_step_was_void_leaves_the_count_in_step(made: Any, remembered: int) -> None:
    """A script updates by that count."""
    job = Job(Group(joined=True), steps=6)
    passes, loader, _ = made(job, parts=2)
    loaders = Loaders(job.group, Script([]), 2)  # type: ignore[arg-type]
    loaders.passes = passes
    found, before = [], passes.place.copy()
    for number, batch in loaders.counted(passes.iterate(loader)):
        job.made += number % 2
        found.append(number)
        if batch == 2 + remembered:
            before = passes.place.copy()
        if batch == 3:
            setattr(job.registered, PLACE, before)
    assert found == [0, 1, 2, 3, 4, 5]


def test_a_script_that_asks_again_is_told_of_more(made: Any) -> None:
    job = Job(Group(joined=True), steps=4)
    passes, loader, _ = made(job)
    loaders = Loaders(job.group, Script([]))  # type: ignore[arg-type]
    loaders.passes = passes
    found = []
    for told in (2, 3):
        loaders.tell(loader, told)
        for number, batch in loaders.counted(trained(job, passes.iterate(loader))):
            if batch == 1:
                loaders.tell(loader, told - 1)
                loaders.tell(loader, told + 1)
            found.append(number)
    assert found == [0, 1, 2, 2, 0, 1, 2, 3]


@pytest.mark.parametrize("own", [100, 8])
def test_a_newcomer_counts_as_far_as_the_others_were_told(made: Any, own: int) -> None:
    job = Job(Group(joined=False), steps=3)
    job.joins = LoopPlace(number=0, given=7, told=9, size=2, first=0, sets_epoch=False, seed=0)
    passes, loader, _ = made(job)
    loaders = Loaders(job.group, Script([]))  # type: ignore[arg-type]
    loaders.passes = passes
    loaders.tell(loader, own)
    assert [number for number, _ in loaders.counted(trained(job, passes.iterate(loader)))] == [0, 7, 8, 8]


def test_a_library_that_counts_on_its_first_number_of_workers_is_refused() -> None:
    kind = type("DataLoaderShard", (DataLoader,), {"__module__": "accelerate.data_loader"})
    with pytest.raises(UsageError, match=r"from edl\.accelerate import Accelerator"):
        _check_library(kind([1]), "train")
    with pytest.raises(UsageError, match="Ignite counts the batches"):
        _check_library(DataLoader([1]), "ignite.engine.engine")  # type: ignore[arg-type]
    _check_library(DataLoader([1]), "lightning.fabric.wrappers")  # type: ignore[arg-type]


def test_a_sampler_shares_out_among_the_workers_there_are() -> None:
    group = Group(joined=True)
    loaders = Loaders(group, Script([]))  # type: ignore[arg-type]
    sampler: DistributedSampler[Any] = DistributedSampler(range(10), 5, 4, shuffle=False)  # type: ignore[arg-type]
    loaders._follow_size(sampler)
    assert [*sampler] == [0, 2, 4, 6, 8]
    for drop_last in (False, True):
        sampler = DistributedSampler(range(11), 4, 1, drop_last=drop_last)  # type: ignore[arg-type]
        loaders._follow_size(sampler)
        assert len(sampler) == len(DistributedSampler(range(11), 2, 0, drop_last=drop_last))  # type: ignore[arg-type]


@pytest.mark.usefixtures("_torchs_loaders")
def test_lengths_are_of_the_size_that_a_newcomer_is_told() -> None:
    """A schedule that is as long as so many epochs is the same on all workers then."""
    group = Group(joined=False)
    Loaders(group, Script([])).put()  # type: ignore[arg-type]
    sampler: DistributedSampler[Any] = DistributedSampler(range(120), group.size(), group.rank())  # type: ignore[arg-type]
    loader: DataLoader[Any] = DataLoader(list(range(120)), 4, sampler=sampler)  # type: ignore[arg-type]
    assert group.rank() == group.size() == 2
    assert (len(sampler), len(loader)) == (60, 15)
    with torch.no_grad():
        assert len([*loader]) == 10, "three share it out"
    assert len(loader) == 15
    loaders = Loaders(group, Script([]), 4)  # type: ignore[arg-type]
    loaders.put()
    assert len(loader) == 16, "whole steps of 4 batches"


class OrderedSampler:
    """As timm's for evaluation: no DistributedSampler, but its attributes."""

    def __init__(self, dataset: Any, num_replicas: int, rank: int) -> None:
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.num_samples = -(-len(dataset) // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = [*range(len(self.dataset))]
        indices = (indices + indices[: self.total_size - len(indices)])[self.rank : self.total_size : self.num_replicas]
        assert len(indices) == self.num_samples
        return iter(indices)

    def __len__(self) -> int:
        return self.num_samples


@pytest.mark.usefixtures("_torchs_loaders")
def test_a_sampler_of_the_scripts_own_shares_out_an_evaluation_and_is_refused_in_training() -> None:
    group = Group(joined=False)
    Loaders(group, Script([])).put()  # type: ignore[arg-type]
    samples: Any = range(10)
    loader: DataLoader[Any] = DataLoader(samples, 2, sampler=OrderedSampler(samples, group.size(), group.rank()))
    with torch.no_grad():
        assert torch.cat([*loader]).tolist() == [2, 5, 8, 1], "the third of three"
    with pytest.raises(UsageError, match="OrderedSampler chooses its samples itself"):
        iter(loader)


@pytest.mark.usefixtures("_torchs_loaders")
def test_a_trial_is_given_the_share_of_one_more_worker() -> None:
    group = Group(joined=False)
    loaders = TrialLoaders(group, Script([]))  # type: ignore[arg-type]
    loaders.put()
    sampler: DistributedSampler[Any] = DistributedSampler(range(12), group.size(), group.rank())  # type: ignore[arg-type]
    loader: DataLoader[Any] = DataLoader(list(range(12)), 2, sampler=sampler)  # type: ignore[arg-type]
    assert len([*iter(loader)]) == loaders.given == 2
    assert len(loader) == 3
