"""The batches of a validation DataLoader, of which each worker loads those that it computes.

Owns: which batches such a loader has, and loading some of them; and the form in which what came of them travels. Does
not own: who computes which (`edl.core.worker.evaluation_shares`), nor computing (`edl.lightning.lightning_validation`,
`edl.transformers.hf_evaluation`, `edl.accelerate.shared_loader`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from edl.torch.loop_steps import as_plain, from_plain

logger = logging.getLogger("edl")

KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
IN_ORDER = ("SequentialSampler", "RandomSampler", "SeedableRandomSampler")


@dataclass(frozen=True, slots=True)
class SharedBatches:
    """Batches of one DataLoader: number n holds samples n * size and following."""

    loader: DataLoader[Any]
    size: int  # samples in each but the last one
    count: int

    def samples(self, number: int) -> int:
        return min(self.size, len(self.loader.dataset) - number * self.size)  # type: ignore[arg-type]

    def load(self, numbers: Sequence[int]) -> Iterator[Any]:
        if not numbers:
            return  # the loader's processes need not start
        chosen = [range(one * self.size, one * self.size + self.samples(one)) for one in numbers]
        loading = {name: value for name in KEPT if (value := getattr(self.loader, name)) is not None}
        collate = self.loader.collate_fn
        yield from DataLoader(self.loader.dataset, batch_sampler=chosen, collate_fn=collate, **loading)  # type: ignore[arg-type]


def shared_batches(loader: object, most: float = float("inf")) -> SharedBatches | None:
    """Return the batches of `loader`, at most `most`; a shuffled loader gives its samples in order. Return None, with a
    warning, where the workers cannot know that they all read the same: each of them then computes all of it.
    """
    if _iterates_as_torch(loader) and not isinstance(loader.dataset, IterableDataset):
        batches = loader.batch_sampler
        if type(batches) is BatchSampler and _in_order(batches.sampler, loader.dataset):
            whole, rest = divmod(len(loader.dataset), batches.batch_size)  # type: ignore[arg-type]
            count = whole + (rest > 0 and not batches.drop_last)
            return SharedBatches(loader, batches.batch_size, int(min(count, most)))
    logger.warning(
        "each worker evaluates all of the data: edl shares out that of a DataLoader with a dataset that has a length, "
        "and without a sampler, or an `__iter__`, of its own"
    )
    return None


def _iterates_as_torch(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Tell whether the loader's class hands out its batches as torch's does. Accelerate's loaders say of which class
    they would be.
    """
    return isinstance(loader, DataLoader) and loader.__class__.__iter__ is DataLoader.__iter__


def _in_order(sampler: object, dataset: Dataset[Any]) -> bool:
    """Tell whether the sampler gives each sample of the dataset once."""
    if type(sampler).__name__ not in IN_ORDER or not isinstance(sampler, (SequentialSampler, RandomSampler)):
        return False
    if isinstance(sampler, RandomSampler) and (sampler.replacement or sampler._num_samples is not None):
        return False
    return len(sampler.data_source) == len(dataset)  # type: ignore[arg-type]


def packed_values(values: Any) -> bytes:
    """Encode plain values and tensors, nested in dicts, lists and tuples."""
    return msgspec.msgpack.encode(as_plain(values))


def unpacked_values(raw: bytes) -> Any:
    """Decode what `packed_values` has encoded; tuples have become lists."""
    return from_plain(msgspec.msgpack.decode(raw))
