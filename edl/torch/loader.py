"""PyTorch's DataLoader over the samples of this worker, while workers come and go.

Owns: how the loader's reading ahead fits the leases. Does not own: the samples (`edl.trainer.data.shards`), nor loading
them, with worker processes or without, which is the DataLoader's own.

A DataLoader asks for the indices of batches to come on the training thread, some before it gives out the first. Waiting
there for samples that are leased only once those in its hands are trained would be forever. So it is given indices in
runs, each as long as nothing need be waited for; in the usual case that is all of an epoch.

A DataLoader draws a number for its worker processes whenever it is iterated. How many runs there are depends on when
leases come, and a job that goes on from a checkpoint has one more: so that number is drawn from a generator of its own,
and the script's random numbers are the same in each case. What those processes draw follows from the step alone
(`edl.torch.loading_seeds`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from edl.errors import UsageError
from edl.sources.source_port import Source
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.foreign_streams import node_of
from edl.torch.loading_seeds import LoadingSeeds, PartLoading, SeatOfSteps, SeededIds, begin_with
from edl.torch.torch_process import framework, trainer
from edl.trainer.data.shards import ShardGenerator
from edl.trainer.virtual_steps import LoadedParts, PartLoad

STEPS = "steps"
OURS = {
    "sampler": "edl chooses the samples: leave it away",
    "batch_sampler": "edl chooses the samples: leave it away",
    "drop_last": "nothing is dropped; the last step of an epoch may be short, and is weighted so",
}
NOT_OF_STREAMS = {
    "timeout": "edl bounds the wait for a stream itself (--step-timeout): leave it away",
    "worker_init_fn": "a stream gives the same items whichever process reads them: leave it away",
}


class Runs(Sampler[list[int]]):
    """The DataLoader's batch sampler: it gives out one run at a time."""

    def __init__(self, seeds: LoadingSeeds, seat: SeatOfSteps, generator: torch.Generator | None) -> None:
        """`generator`: the script's own for loading, if it has one."""
        self._seeds, self._seat, self._theirs = seeds, seat, generator
        self.generator = torch.Generator() if generator is None else generator  # for the DataLoader
        self.order: Callable[[int, Any], Any] = lambda _step, ids: ids
        self._run: Iterator[Any] = iter(())
        self._step: Callable[[], int] = int
        self._begun = False
        self._parts: Iterator[list[int]] | None = None

    def begin(self, run: Iterator[Any], step: Callable[[], int]) -> None:
        """Load the arrays of ids of `run` next; `step` tells the step of the newest one. Saved random numbers were
        given back before.
        """
        self._run, self._step = run, step
        drawn = self._seeds.drawn(self._theirs)
        if self._theirs is None and not self._begun:
            self.generator.manual_seed(drawn)
        self._begun = True

    def begin_parts(self, parts: Iterator[list[int]]) -> None:
        """Load these parts of steps next, in a job with virtual workers."""
        self._parts = parts

    def __iter__(self) -> Iterator[list[int]]:
        if self._parts is not None:
            return self._parts
        return (self._loaded(self._step(), ids) for ids in self._run)

    def _loaded(self, step: int, ids: Any) -> list[int]:
        return SeededIds(self.order(step, ids).tolist(), self._seeds.of(self._seat, step))


class ElasticDataLoader(DataLoader[Any]):
    """A `torch.utils.data.DataLoader` over this worker's samples of `dataset`: one batch per step, each sample once.

    Args:
        dataset: anything with `__getitem__` and `__len__`; or a stream: an `edl.ElasticStream`, or an iterable dataset
            that has `state_dict()` and `load_state_dict()`.
        batch_size: samples of one step of one worker; the last step of an epoch may have fewer.
        shuffle: each epoch in an order of its own.
        epochs: of one iteration; None: each iteration is one more epoch, and `while loader.shards.epochs_done < 10:`
            around it is right on all workers.
        seed: of the shuffling, the same on all workers.
        among: that of `edl.elastic_shard_generator`; then `batch_size` is divided among these processes.
        loading: the DataLoader's own: num_workers, collate_fn, pin_memory, prefetch_factor, ...

    Batches that its worker processes have loaded ahead survive changes of size, and a void mini-batch comes again.

    >>> dataset = torch.utils.data.TensorDataset(torch.arange(6.0))
    >>> for (values,) in edl.ElasticDataLoader(dataset, batch_size=4, epochs=1):
    ...     print(values)
    ...     train_on(range(len(values)))
    ...     committed = edl.notify_batch_end()
    tensor([0., 1., 2., 3.])
    tensor([4., 5.])
    """

    def __init__(
        self,
        dataset: Dataset[Any] | ElasticStream,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        epochs: int | None = None,
        seed: int = 0,
        among: Any = None,
        **loading: Any,
    ) -> None:
        if (stream := stream_of(dataset)) is not None:
            self._init_stream(stream, batch_size, shuffle, epochs, loading)
            return
        assert not isinstance(dataset, ElasticStream)  # it is its own stream
        _check(dataset, loading)
        samples = len(dataset)  # type: ignore[arg-type]
        shards: ShardGenerator[Any] = trainer.data.elastic_shard_generator(samples, epochs, shuffle, seed, among=among)
        self._runs = runs = Runs(framework.loading, trainer, loading.get("generator"))
        if loading.get("num_workers"):
            loading = {"persistent_workers": True, **loading}
        super().__init__(dataset, batch_sampler=runs, **{**loading, "generator": runs.generator})
        self._loads_steps_of = batch_size
        self._shards = shards

    def _init_stream(
        self, stream: ElasticStream, batch_size: int, shuffle: bool, epochs: int | None, loading: dict[str, Any]
    ) -> None:
        _check_names({**OURS, **NOT_OF_STREAMS}, loading)
        if batch_size is None:
            raise UsageError(
                "ElasticDataLoader(batch_size=None): say how many items of the stream make a step of one worker; of "
                "items that are batches themselves, batch_size=1 and collate_fn=lambda items: items[0]"
            )
        shards: ShardGenerator[Any] = trainer.data.elastic_shard_generator(stream, epochs, shuffle)
        shards.read_by(loading.pop("num_workers", 0), loading.pop("multiprocessing_context", None))
        for name in ("prefetch_factor", "persistent_workers"):  # a stream is read ahead as far as leases need it
            loading.pop(name, None)
        if loading.get("collate_fn") is None:
            loading["collate_fn"] = default_collate
        self._runs = runs = Runs(framework.loading, trainer, loading.get("generator"))
        super().__init__(
            _StreamBatches(shards, batch_size), batch_size=None, **{**loading, "generator": runs.generator}
        )
        self._loads_steps_of = batch_size
        self._shards = shards

    def __len__(self) -> int:
        """Batches of this worker in a whole epoch, at the present size."""
        if isinstance(self.dataset, _StreamBatches):
            raise TypeError("a stream has no length")
        return batches_of_epoch(self.dataset, self._loads_steps_of)  # type: ignore[arg-type] # check() has seen to it

    @property
    def shards(self) -> ShardGenerator[Any]:
        """The source of the samples: it knows how many epochs are done."""
        return self._shards

    def order_by(self, order: Callable[[int, Any], Any]) -> None:
        """Load the samples that `order(step, ids)` returns, an array, in the place of those with the numbers `ids`."""
        self._runs.order = order

    @property
    def samples_of_step(self) -> int:
        """Samples of one worker in a step, as the script has said it."""
        return self._loads_steps_of

    def state_dict(self) -> dict[str, int]:
        """Return the loader's place, for scripts that save their loader with the model, as torchdata's
        StatefulDataLoader does.
        """
        return {"epochs_done": self._shards.epochs_done, STEPS: trainer.steps_before + trainer.step() - 1}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Raises UsageError where the job is at another place: of a job's data, the job's own checkpoint knows."""
        steps, wanted = trainer.steps_before, state_dict.get(STEPS)
        if wanted != steps:
            raise UsageError(
                f"ElasticDataLoader.load_state_dict(): it was saved after step {wanted}, and this job goes on from "
                f"step {steps}: save the job by `edl run --checkpoint DIR`, and it goes on at the exact sample"
            )

    def __iter__(self) -> Any:
        if not trainer.virtual:
            return self._shards.in_step(self._batches())
        dataset = self.dataset
        return self._parts_of_stream(dataset) if isinstance(dataset, _StreamBatches) else self._parts()

    def _parts_of_stream(self, dataset: _StreamBatches) -> Iterator[LoadedParts]:
        """Yield the mini-batch of each step in its parts: their items are at hand, and collated here."""
        loaded = super().__iter__()
        for first in loaded:
            items, loads = dataset.items, dataset.loads
            found = {load.virtual: next(loaded) if at else first for at, load in enumerate(loads)}
            trainer.data.begin_numbers(items)
            yield LoadedParts(found, len(items))

    def _parts(self) -> Iterator[LoadedParts]:
        """Yield the mini-batch of each step in its parts, one for each virtual worker."""

        def begin(parts: Iterator[list[int]]) -> Iterator[Any]:
            self._runs.begin_parts(parts)
            return super(ElasticDataLoader, self).__iter__()

        loading = PartLoading(begin, here=not self.num_workers)
        ahead = self.num_workers * (self.prefetch_factor or 0) + 1  # so many the DataLoader may ask for at once
        for ids in self._shards.batches(self._loads_steps_of):
            loads = trainer.parts.loads_of(ids)
            loaded = loading.take(loads, trainer.parts.loads_coming(ahead) if self.num_workers else ())
            trainer.data.begin_numbers(ids)
            yield LoadedParts(loaded, len(ids))

    def _batches(self) -> Iterator[Any]:
        if isinstance(self.dataset, _StreamBatches):
            self._runs.begin(iter(()), lambda: self._shards.newest_step)
            yield from super().__iter__()
            return
        for run in self._shards.runs(self._loads_steps_of):
            self._runs.begin(run, lambda: self._shards.newest_step)
            yield from super().__iter__()


class _StreamBatches(IterableDataset[Any]):
    """Lists of the items of each step, for the DataLoader to collate."""

    def __init__(self, shards: ShardGenerator[Any], samples: int) -> None:
        self._shards, self._samples = shards, samples
        self.items: Any = []  # of the step whose parts come, in a job with virtual workers
        self.loads: list[PartLoad] = []  # these parts

    def __iter__(self) -> Iterator[Any]:
        return self._by_parts() if trainer.virtual else self._shards.batches(self._samples)

    def _by_parts(self) -> Iterator[Any]:
        for items in self._shards.batches(self._samples):
            self.items, self.loads = items, trainer.parts.loads_of(items)
            for load in self.loads:
                begin_with(load.seed)
                yield load.ids


def stream_of(dataset: Any) -> ElasticStream | None:
    """Return the stream that `dataset` is; None where its samples have numbers. Raises UsageError for one that cannot
    tell its place.
    """
    if isinstance(dataset, ElasticStream):
        return dataset
    is_stateful = hasattr(dataset, "load_state_dict") or node_of(dataset) is not None
    if isinstance(dataset, IterableDataset) or (is_stateful and not _has_numbers(dataset)):
        return ElasticStream(dataset)
    return None


def _has_numbers(dataset: Any) -> bool:
    return hasattr(dataset, "__len__") and (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"))


def batches_of_epoch(dataset: Sized, samples: int) -> int:
    """Count this worker's batches of an epoch at the present size, of so many samples each; the last may have fewer. In
    a job with virtual workers count the steps, in which each of them has a batch.
    """
    return math.ceil(len(dataset) / (samples * (trainer.virtual or trainer.size())))


def _check(dataset: Dataset[Any], loading: dict[str, Any]) -> None:
    """Raise UsageError for what edl decides itself, or cannot serve."""
    if not _has_numbers(dataset):
        raise UsageError(
            f"ElasticDataLoader: {type(dataset).__name__} has no samples by number: give a dataset with "
            "__getitem__ and __len__, so that each sample can go to exactly one worker"
        )
    _check_names(OURS, loading)


def _check_names(ours: Mapping[str, str], loading: Mapping[str, Any]) -> None:
    for name, remedy in ours.items():
        if loading.get(name):
            raise UsageError(f"ElasticDataLoader({name}=...): {remedy}")


class Records(Dataset[Any]):
    """Records that each process opens anew: worker processes would else share the place in a file with their parent."""

    def __init__(self, opened: Callable[[], Source]) -> None:
        self._open = opened
        self._source: Source | None = None
        self._process = 0
        self._total, self.fingerprint = len(self._here()), self._here().fingerprint

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number: int) -> Any:
        return self._here().read([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Read all records of a batch at once, as the DataLoader asks for them."""
        return self._here().read(numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def _here(self) -> Source:
        if self._source is None or self._process != os.getpid():
            self._source, self._process = self._open(), os.getpid()
        return self._source
