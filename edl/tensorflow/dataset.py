"""This worker's batches as a `tf.data.Dataset`.

Owns: which tensors records become. Does not own: the batches (`edl.trainer.data.shards`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from edl.errors import DataError, UsageError
from edl.trainer.data.shards import ShardGenerator

KINDS = {str: tf.string, bytes: tf.string, bool: tf.bool, int: tf.int64, float: tf.float32}


def dataset_of(shards: ShardGenerator, batch_size: int) -> Any:
    """One element per step: sample ids, or records as a vector, or as a dict of one vector for each column."""
    example = shards.example()
    if isinstance(example, int):
        return tf.data.Dataset.from_generator(lambda: shards.batches(batch_size), output_signature=_vector(int, ""))
    if isinstance(example, dict):
        signature = {name: _vector(type(value), f" in {name!r}") for name, value in example.items()}
    else:
        signature = _vector(type(example), "")
    return tf.data.Dataset.from_generator(
        lambda: _tensors(shards.batches(batch_size), signature), output_signature=signature
    )


def _vector(kind: type, where: str) -> Any:
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
