"""A `tf.data.Dataset` of this worker's batches.

Owns: which tensors records become, and that a script which leaves an iteration does not wait for samples there. Does
not own: the batches (`edl.trainer.data.shards`).

TensorFlow takes an iterator down in the thread that drops it, and waits there for what its pipeline is at. That may
wait for samples, which may never come: a script drops its iterator as it breaks off, or as an exception passes through
its loop, say of a collective whose ring is gone. So the pipeline is told before.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf

from edl.errors import DataError, UsageError
from edl.trainer.data.epoch_cursor import Pass
from edl.trainer.data.shards import ShardGenerator

KINDS = {str: tf.string, bytes: tf.string, bool: tf.bool, int: tf.int64, float: tf.float32}


def dataset_of(shards: ShardGenerator[Any], batch_size: int) -> Any:
    """Make a dataset with an element per step: sample ids, or records as a vector, or as a dict of one vector for each
    column.
    """
    example = shards.example()
    if isinstance(example, dict):
        signature: Any = {name: _vector(value, f" in {name!r}") for name, value in example.items()}
    else:
        signature = _vector(example, "")

    def batches() -> Iterator[Any]:
        given: Iterator[Any] = shards.batches(batch_size)
        try:
            yield from given if shards.gives_ids else _tensors(given, signature)
        except UsageError:
            if not shards.left:  # else the script never hears of it, and TensorFlow would log it
                raise

    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    _iterations.of(dataset, shards)
    return dataset


def dataset_of_arrays(arrays: Any, shards_of: Callable[[int], ShardGenerator[Any]], batch_size: int) -> Any:
    """Make a dataset with an element per step: the rows of its samples, in the nesting of the arrays."""
    with tf.device("CPU:0"):
        rows = tf.nest.map_structure(tf.convert_to_tensor, arrays)
    lengths = {_length(one) for one in tf.nest.flatten(rows)}
    if len(lengths) != 1:
        raise UsageError(
            f"edl.elastic_dataset(): the arrays have {', '.join(map(str, sorted(lengths)))} rows; give all of them one "
            "for each sample"
        )
    ids = dataset_of(shards_of(lengths.pop()), batch_size)
    return ids.map(lambda numbers: tf.nest.map_structure(lambda one: tf.gather(one, numbers), rows))


def _length(one: Any) -> int:
    if not one.shape.rank:
        raise UsageError(
            "edl.elastic_dataset(source, batch_size): source is neither what edl.elastic_shard_generator() returned, "
            "nor arrays with a row for each sample, such as (x, y)"
        )
    return int(one.shape[0])


@dataclass(eq=False, slots=True)
class _Iteration:
    """An iteration that the script has not left yet."""

    shards: ShardGenerator[Any]
    before: Pass | None  # the newest when it was made: not its own

    def has(self, newest: Pass) -> bool:
        """Tell whether a pass may be this iteration's: TensorFlow calls for it later, from a thread
        of the pipeline's.
        """
        return newest is not self.before


class _Iterations:
    """Iterations over datasets that are made of one of ours, and how they end."""

    def __init__(self) -> None:
        self._ours: list[tuple[weakref.ref[Any], ShardGenerator[Any]]] = []
        self._live: list[_Iteration] = []  # in the order in which they were made
        self._listens = False

    def of(self, dataset: Any, shards: ShardGenerator[Any]) -> None:
        """Note that this dataset hands out what is of `shards`."""
        self._ours = [one for one in self._ours if one[0]() is not None]
        self._ours.append((weakref.ref(dataset), shards))
        if not self._listens:
            self._listens, made = True, tf.data.Dataset.__iter__

            @functools.wraps(made)
            def begin(source: Any) -> Any:
                sources = [*self._sources(source)]
                for one in sources:
                    one.check_untrained()  # here, as an error of the pipeline's is TensorFlow's, and long
                iterator = made(source)
                for one in sources:
                    self._begin(iterator, one)
                return iterator

            tf.data.Dataset.__iter__ = begin

    def _sources(self, dataset: Any) -> Iterator[ShardGenerator[Any]]:
        for ours, shards in self._ours:
            if ours() is dataset:
                yield shards
                return
        for one in dataset._inputs():
            yield from self._sources(one)

    def _begin(self, iterator: Any, shards: ShardGenerator[Any]) -> None:
        iteration = _Iteration(shards, shards.newest_pass)
        self._live.append(iteration)
        # Called before anything that belongs to the iterator is taken down.
        weakref.finalize(iterator, self._end, iteration).atexit = False

    def _end(self, iteration: _Iteration) -> None:
        newest = iteration.shards.newest_pass
        live = [one for one in self._live if one.shards is iteration.shards]
        self._live.remove(iteration)
        if newest is not None and [one for one in live if one.has(newest)][-1:] == [iteration]:
            newest.leave()


_iterations: Final = _Iterations()


def _vector(value: Any, where: str) -> Any:
    if isinstance(value, np.ndarray):
        return tf.TensorSpec([None, *value.shape], value.dtype)
    kind = type(value)
    if kind not in KINDS:
        raise UsageError(
            f"edl.elastic_dataset(): the records have a {kind.__name__}{where}, which is no tensor's; iterate "
            "shards.batches(n), which gives the records as they are, and make tensors of them yourself"
        )
    return tf.TensorSpec([None], KINDS[kind])


def _tensors(batches: Iterator[list[Any]], signature: Any) -> Iterator[Any]:
    for records in batches:
        if isinstance(signature, dict):
            yield {name: _column([_field(one, name) for one in records], spec) for name, spec in signature.items()}
        else:
            yield _column(records, signature)


def _field(record: dict[str, Any], name: str) -> Any:
    if record.get(name) is None:
        raise DataError(f"a record has no {name!r}, as the first one has: {str(record)[:80]}")
    return record[name]


def _column(values: list[Any], spec: Any) -> Any:
    if spec.dtype is tf.string:
        return np.array([value.encode() if isinstance(value, str) else value for value in values], dtype=object)
    return np.array(values, dtype=spec.dtype.as_numpy_dtype)
