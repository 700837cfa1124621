"""A DataLoader as any script makes it becomes one over this worker's samples, for training loops that a library owns.

Owns: which DataLoaders can be made elastic, and the parts of a mini-batch over which such a loop adds up gradients.
Does not own: loading (`edl.torch.loader`), nor the loops (`edl.lightning`, `edl.transformers`, `edl.accelerate`).

A loop that makes one update of several batches makes one step of the job of them: the samples of a step are loaded at
once, and cut where the script's batches would end. All but the last part of a step only add up gradients.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from edl.errors import UsageError
from edl.torch.loader import ElasticDataLoader, batches_of_epoch, stream_of
from edl.torch.torch_process import framework, trainer
from edl.trainer.virtual_steps import LoadedParts

logger = logging.getLogger("edl")

ONE_BACKWARD = (
    "virtual workers need exactly one in each batch: add up the losses of a batch, or start the job without "
    "--virtual-workers"
)
KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator")
RANDOM = ("RandomSampler", "SeedableRandomSampler")  # the second one is Accelerate's
WITH_PROCESSES = ("prefetch_factor", "persistent_workers")


class Order(NamedTuple):
    """The order in which the script wants its samples."""

    shuffle: bool
    seed: int


class PartCut(NamedTuple):
    """The rule by which the samples of one step are cut into batches."""

    samples: int  # of a batch
    number: int | None = None  # of batches in each step, whatever samples there are; None: as many as come of them
    full: bool = False  # each batch is

    def of(self, samples: Sequence[Any]) -> list[Sequence[Any]]:
        """Cut the samples of a step. If there are too few for so many batches, these are smaller, of two samples at
        least; if there are still too few, samples come again inside of the step: all of them equally often where that
        can be, so that the mean of its gradients stays what it is.
        """
        if self.number is not None and self.full:
            samples = [samples[index % len(samples)] for index in range(self.samples * self.number)]
        parts = [samples[begin : begin + self.samples] for begin in range(0, len(samples), self.samples)]
        if self.number is None or len(parts) >= self.number:
            return parts
        counts = [one for one in range(len(parts), len(samples) + 1) if self.number % one == 0]
        if not counts:
            return [parts[index % len(parts)] for index in range(self.number)]
        count = max([one for one in counts if 2 * one <= len(samples)], default=counts[0])
        ends = [len(samples) * one // count for one in range(count + 1)]
        return [samples[begin:end] for begin, end in itertools.pairwise(ends)] * (self.number // count)


class CollatedParts:
    """Samples of one step, as the batches that the script would have made of them, and how many are in each."""

    def __init__(self, collate: Callable[[Any], Any], cut: PartCut) -> None:
        self._collate, self._cut = collate, cut

    def __call__(self, samples: Sequence[Any]) -> list[tuple[Any, int]]:
        return [(self._collate(part), len(part)) for part in self._cut.of(samples)]


class StepParts:
    """Batches for a library's loop, which know which of them is the last one before an update."""

    def __init__(self, loader: ElasticDataLoader, samples: int | None = None) -> None:
        """`samples` of a part, where the loader gives those of `CollatedParts`; else a batch is all of a step."""
        self.loader = loader
        self._samples = samples
        self.share = 1.0  # of the newest batch, in the samples of its step; with virtual workers, of its part
        self.first = self.last = True  # the newest batch is, of its step; with virtual workers: its gradients are all
        self._is_due = self._begins_part = self._ends_part = False  # the newest batch's backward(); its part with it
        self._parts: Iterator[tuple[Any, float]] = iter(())  # of virtual workers that come in this step
        self._part: list[tuple[Any, int]] | None = None  # the batches of the newest one

    def __len__(self) -> int:
        """Batches of this worker in a whole epoch, at the present size. Raises TypeError for a stream."""
        return batches_of_epoch(self.dataset, self._samples or self.loader.samples_of_step)

    def __iter__(self) -> Iterator[Any]:
        for parts in self.loader:
            if isinstance(parts, LoadedParts):
                yield from self._of_virtual_workers(parts)
                continue
            if self._samples is None:
                yield parts
                continue
            whole = sum(samples for _, samples in parts)
            for number, (batch, samples) in enumerate(parts, 1):
                self.share, self.first, self.last = samples / whole, number == 1, number == len(parts)
                yield batch

    def _of_virtual_workers(self, step: LoadedParts) -> Iterator[Any]:
        """Yield the batches of each part of a step; of all parts once more where a scale did not suffice."""
        self._parts = trainer.data.microbatches(step)
        self.first = True
        self._take_part()
        while (part := self._part) is not None:
            trainer.data.begin_part()  # anew: the loop's body went on after the backward() before
            samples = sum(count for _, count in part)
            for number, (batch, count) in enumerate(part, 1):
                self.share, self.last = count / samples, False
                self._is_due, self._begins_part, self._ends_part = True, number == 1, number == len(part)
                yield batch
                self.first = False
                if self._is_due:
                    raise UsageError(f"this batch has had no backward(): {ONE_BACKWARD}")

    @property
    def of_virtual_workers(self) -> bool:
        return bool(trainer.virtual)

    def begin_part(self) -> bool:
        """Begin the random numbers of the newest batch's part anew, where one begins: since it was fetched, the loop
        may have done other things. Return whether one begins, of a virtual worker.
        """
        if begins := self.of_virtual_workers and self._begins_part:
            trainer.data.begin_part()
        return begins

    def note_backward(self) -> None:
        """Note that the gradients of the newest batch are there, in a job with virtual workers. After those of the last
        part they are added up over all workers, and `last` is true. Raises UsageError.
        """
        if not self._is_due:
            raise UsageError(f"backward() is called once more in one batch: {ONE_BACKWARD}")
        self._is_due = False
        if self._ends_part:
            self._take_part()

    def _take_part(self) -> None:
        part, _ = next(self._parts, (None, 0.0))
        self._part = [(part, 1)] if part is not None and self._samples is None else part
        self.last = part is None

    @property
    def dataset(self) -> Any:
        return self.loader.dataset


def check_no_parts() -> None:
    """Raise UsageError in a job with virtual workers."""
    if trainer.virtual:
        raise UsageError(
            "a loop that ends steps by itself cannot take the parts of virtual workers: start it without "
            "--virtual-workers, or write the loop over an edl.ElasticDataLoader and edl.microbatches(batch)"
        )


def converted(
    loader: object,
    parts: int,
    seed: int,
    order: Order | None = None,
    *,
    as_it_counts: bool = False,
    takes_parts: bool = False,
) -> StepParts:
    """Make a loader over this worker's samples of `loader`, with `parts` batches a step. `seed`: of an order that has
    none of its own. `order`: if it is not that of the loader's sampler. `as_it_counts`: each step has so many batches,
    also of few samples, and all are full where the loader's are: its script counts them by itself.

    Raises UsageError for what cannot be: the sampler chooses the samples itself, say.
    """
    if not takes_parts:
        check_no_parts()
    if isinstance(loader, ElasticDataLoader):
        if parts > 1:
            raise UsageError(
                f"gradients are to be added up over {parts} batches, and an edl.ElasticDataLoader gives those of one "
                "update at once: give a plain DataLoader, or leave the accumulation away"
            )
        return StepParts(loader)
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"edl trains on a torch.utils.data.DataLoader, not on a {type(loader).__name__}: it must choose the samples"
        )
    sampler, samples = _sampler_of(loader)
    order = order_of(sampler, seed) if order is None else order
    drops = bool(getattr(loader.batch_sampler, "drop_last", False))
    if drops and not as_it_counts:
        logger.warning("drop_last has no effect: nothing is dropped, and an epoch's last step is weighted by its size")
    loading = {name: value for name in KEPT if (value := getattr(loader, name)) is not None}
    if loader.num_workers:
        loading |= {name: getattr(loader, name) for name in WITH_PROCESSES}
    if stream_of(loader.dataset) is not None:
        loading.pop("worker_init_fn", None)  # a library gives its own, which seeds: a stream's items follow from it
    cut = PartCut(samples, parts, drops) if as_it_counts else PartCut(samples)
    collate = CollatedParts(loader.collate_fn, cut)
    elastic = ElasticDataLoader(
        loader.dataset, samples * parts, order.shuffle, seed=order.seed, collate_fn=collate, **loading
    )
    return StepParts(elastic, samples)


def _sampler_of(loader: DataLoader[Any]) -> tuple[Any, int]:
    """Return the loader's sampler, and how many samples a batch has."""
    batches = loader.batch_sampler
    if batches is None:
        if loader.batch_size is None and hasattr(loader.dataset, "__getitem__"):
            raise UsageError("edl cuts the batches: give the DataLoader a batch_size")
        return loader.sampler, 1
    if type(batches) is not BatchSampler:
        if loader.batch_size is None:
            raise UsageError(f"edl chooses the samples: leave batch_sampler={type(batches).__name__}(...) away")
        return loader.sampler, loader.batch_size  # of an iterable dataset, which is refused
    return batches.sampler, batches.batch_size


def order_of(sampler: object, seed: int) -> Order:
    """Return the order that a sampler gives. Raises UsageError where edl cannot give the same."""
    if isinstance(sampler, DistributedSampler):
        return Order(sampler.shuffle, sampler.seed)
    if (
        type(sampler).__name__ in RANDOM
        and isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler._num_samples is None
    ):
        return Order(True, seed if sampler.generator is None else sampler.generator.initial_seed() % 2**63)
    if type(sampler) is SequentialSampler or type(sampler).__name__ == "_InfiniteConstantSampler":
        return Order(False, seed)
    raise UsageError(
        f"edl chooses the samples, each once an epoch: leave sampler={type(sampler).__name__}(...) away, or say "
        "shuffle=True"
    )


# Asking a loader that `edl.prepare` or Accelerate has prepared for a batch is the end of the step before.


class ElasticBatches:
    """Mini-batches of this worker, one after the other, as the script's loader has them."""

    def __init__(self, parts: StepParts, placed: Callable[[Any], Any]) -> None:
        self.parts = parts
        self._placed = placed
        self._updates: int | None = None  # there were when the newest batch was given out, and its step has not ended
        self._step = 0  # of the newest batch
        self.between = False  # the newest step has ended, and the next one has not begun

    def __len__(self) -> int:
        """Batches of this worker in a whole epoch, at the present size."""
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        self._end_left()
        for batch in self.parts:
            self._updates, self._step, self.between = framework.updates(), trainer.step(), False
            trainer.give_out(self._end)
            yield self._placed(batch)
            if self.parts.last and self._updates is not None:  # else an evaluation has ended it
                self._end()

    def epochs(self, wanted: int) -> Iterator[int]:
        """Iterate over the job's passes over its data: for the loop around the loop over batches, in the place of
        `range(wanted)`. A newcomer comes into the pass that the others are at, and stops with them. A pass that the
        script leaves by `break` is followed by what is left of its epoch.
        """
        shards = self.parts.loader.shards
        while (done := shards.epochs_done) < wanted:
            yield done
            self._end_left()

    @property
    def in_step(self) -> bool:
        """Tell whether a batch was given out whose step has not ended."""
        return self._updates is not None

    @property
    def dataset(self) -> Any:
        return self.parts.dataset

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: each pass has an order of its own."""

    def _end_left(self) -> None:
        """End the step in which the script has left its iteration, if its update was made, or it is void."""
        if self._updates is not None and (trainer.voided or framework.updates() != self._updates):
            self.parts.loader.shards.leave()  # what the script does between two passes may be done: not by newcomers
            self._end()

    def _end(self) -> None:
        self._updates, self.between = None, True
        trainer.give_out(None)
        if trainer.step() != self._step:
            raise UsageError(
                "notify_batch_end() was called in a loop over a prepared loader, which ends each mini-batch where the "
                "next one is asked for: leave the call away"
            )
        trainer.notify_batch_end()
