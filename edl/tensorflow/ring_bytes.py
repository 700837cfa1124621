"""Bytes and numbers in the ring, as TensorFlow's tensors.

Owns: moving them. Does not own: what they say (`edl.collectives.byte_collectives`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context
from tensorflow.python.eager.execute import execute
from tensorflow.python.framework import op_def_registry

from edl import background
from edl.collectives.name_warmup import Named
from edl.tensorflow.tf_state import broadcast_bytes

ALLREDUCE = "EdlAllreduce"  # of edl/collectives/_turns.cpp
IN_TURN = -1  # there, in the place of a copy's number
AT_ONCE = 16  # reductions that wait for the other members, each on a thread of its own


class TensorFlowCollectives:
    """`edl.collectives.horovod_ring.Collectives`."""

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        return broadcast_bytes(np.frombuffer(payload, np.uint8), root, name.replace(".", "_")).tobytes()

    def largest(self, values: Sequence[int], name: str) -> list[int]:
        return _largest(values, name.replace(".", "_"))

    def largest_begun(self, values: Sequence[int], name: str) -> Callable[[], list[int]]:
        """Begin `largest` on a thread: Horovod has no call for TensorFlow that comes back before its answer."""
        return background.begin(lambda: self.largest(values, name)).result

    def sum(self, values: NDArray[np.int32], name: str) -> NDArray[np.int32]:
        """Return the sum of all members' values in each place."""
        with context.eager_mode(), tf.device("CPU:0"):
            tensor = tf.convert_to_tensor(values)
            reduced = _by_our_own(tensor, name, hvd.Sum, IN_TURN) if _has_our_own() else _summed(name)(tensor)
            return np.asarray(reduced.numpy())

    def largest_in(self, library: int, values: list[int], name: str) -> list[int]:
        with context.eager_mode(), tf.device("CPU:0"):
            tensor = tf.constant(values, tf.int64)
            return _numbers(_by_our_own(tensor, name.replace(".", "_"), hvd.Max, library))

    def reduce_zeros(self, library: int, tensors: Sequence[Named]) -> None:
        """Reduce zeros, in the same order on all members: a collective that a member waits for is begun by the others
        in the end.
        """
        left = iter(tensors)  # of all threads

        def reduce() -> None:
            with context.eager_mode(), tf.device("CPU:0"):
                for one in left:
                    _by_our_own(tf.zeros(one.shape, one.kind), one.name, hvd.Average, library)

        threads = [background.begin(reduce) for _ in range(min(AT_ONCE, len(tensors)))]
        wait(threads)  # for all: none may come upon the next ring there
        for one in threads:
            one.result()


def _largest(values: Sequence[int], name: str) -> list[int]:
    with context.eager_mode(), tf.device("CPU:0"):
        tensor = tf.constant(values, tf.int64)
        return _numbers(_by_our_own(tensor, name, hvd.Max, IN_TURN) if _has_our_own() else _reduction(name)(tensor))


def _numbers(reduced: Any) -> list[int]:
    return [int(value) for value in reduced.numpy()]


def _has_our_own() -> bool:
    """Tell whether there is the operation that `_by_our_own` calls: it comes with what lets two copies of Horovod's
    library take turns.
    """
    return op_def_registry.get(ALLREDUCE) is not None


def _by_our_own(tensor: Any, name: str, operation: int, library: int) -> Any:
    """Horovod knows all that execute eagerly by one name, and refuses one that comes while another, say a script's, is
    on its way. This one says its name.
    """
    attributes = ("tensor_name", name, "reduce_op", operation, "copy", library, "T", tensor.dtype.as_datatype_enum)
    return execute(ALLREDUCE, 1, [tensor], attributes, context.context())[0]


@functools.cache
def _reduction(name: str) -> Any:
    """Make a named reduction, in a graph, as only there has one of Horovod's own operations a name. Its first run takes
    some 60 ms.
    """
    return _traced(name, hvd.Max, tf.int64)


@functools.cache
def _summed(name: str) -> Any:
    return _traced(name, hvd.Sum, tf.int32)


def _traced(name: str, operation: int, kind: Any) -> Any:
    reduce = functools.partial(hvd._allreduce, op=operation, name=name)
    return tf.function(reduce, input_signature=[tf.TensorSpec([None], kind)], autograph=False)
