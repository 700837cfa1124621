"""The values of variables, from one rank to all others; and bytes and numbers in the ring, as tensors.

Owns: moving them. Does not own: which variables make up the state (`edl.tensorflow.tf_framework`), nor when they move.

Large variables of TensorFlow 2 go from memory to memory, one by one: at 100 MB each copy costs as much as sending it.
Those of a graph of TensorFlow 1 live in a session: all are read in one run and written in one, through their
initializers, so that a finalized graph needs no new operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any, Protocol

import horovod.tensorflow as hvd
import msgspec
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context
from tensorflow.python.eager.execute import execute
from tensorflow.python.framework import op_def_registry

from edl import background
from edl.collectives.horovod_ring import HorovodRing
from edl.collectives.name_warmup import Named
from edl.errors import RingBroken, UsageError
from edl.trainer.first_state import ALIKE

LARGE_BYTES = 4 * 1024 * 1024  # from here on a variable travels alone; smaller ones share a message


class Described(msgspec.Struct, frozen=True, array_like=True):
    """A variable without its contents."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Variables(Protocol):
    """Variables, in the same order on all workers."""

    def describe(self) -> list[Described]: ...

    def broadcast(self, root: int, receive: bool) -> int:
        """Send the values of rank `root`; take them over if told to. Returns the bytes sent."""

    def remember(self) -> Callable[[], None]:
        """Remember the present values, on any thread. The returned function puts them back."""

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Return the present values; an update that comes later does not change them."""

    def put(self, values: Sequence[np.ndarray[Any, Any]]) -> None: ...


class EagerVariables:
    """Variables of TensorFlow 2."""

    def __init__(self, variables: Sequence[tuple[str, Any]]) -> None:
        self._variables = variables

    def describe(self) -> list[Described]:
        return [_describe(name, variable) for name, variable in self._variables]

    def some(self, numbers: Iterable[int]) -> EagerVariables:
        return EagerVariables([self._variables[number] for number in numbers])

    def broadcast(self, root: int, receive: bool) -> int:
        moved = 0
        small: list[Any] = []
        for number, (_, variable) in enumerate(self._variables):
            size: int = variable.dtype.size * variable.shape.num_elements()
            if size < LARGE_BYTES:
                small.append(variable)
            else:
                _send_alone(variable, root, f"edl_state_{number}", receive)
                moved += size
        values = [variable.numpy() for variable in small]
        received = broadcast_arrays(values, root)
        if receive:
            for variable, value in zip(small, received, strict=True):
                variable.assign(value)
        return moved + _bytes(values)

    def remember(self) -> Callable[[], None]:
        with context.eager_mode():
            kept = [(variable, variable.read_value()) for _, variable in self._variables]

        def put_back() -> None:
            for variable, value in kept:
                variable.assign(value)

        return put_back

    def values(self) -> list[np.ndarray[Any, Any]]:
        return contents(read([variable for _, variable in self._variables]))

    def put(self, values: Sequence[Any]) -> None:
        """Arrays, or tensors: a variable takes over the memory of a tensor that the caller lets go of."""
        for (_, variable), value in zip(self._variables, values, strict=True):
            variable.assign(value)


def read(variables: Sequence[Any]) -> list[Any]:
    """Read variables as `read_value` does: a value shares its variable's memory, until that is updated into other
    memory.
    """
    return [tf.raw_ops.ReadVariableOp(resource=one.handle, dtype=one.dtype) for one in variables]


def contents(tensors: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(tensor._numpy()) for tensor in tensors]


class SessionVariables:
    """Variables of a graph, by the session that is the default one where the script calls edl."""

    def __init__(self) -> None:
        self._session = tf.compat.v1.get_default_session()
        if self._session is None:
            raise UsageError(
                "in graph mode edl reads and writes variables: call it inside `with session.as_default():`"
            )
        self._variables = self._session.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)

    def describe(self) -> list[Described]:
        return [_describe(variable.name, variable) for variable in self._variables]

    def broadcast(self, root: int, receive: bool) -> int:
        values = self._read()
        received = broadcast_arrays(values, root)
        if receive:
            self._write(received)
        return _bytes(values)

    def remember(self) -> Callable[[], None]:
        # Perhaps from within a run of the script's, which asks for its weight: that one may hold all threads.
        return partial(self._write, self._read(tf.compat.v1.RunOptions(inter_op_thread_pool=-1)))

    def values(self) -> list[np.ndarray[Any, Any]]:
        return self._read()

    def put(self, values: Sequence[np.ndarray[Any, Any]]) -> None:
        self._write(values)

    def _read(self, options: Any = None) -> list[np.ndarray[Any, Any]]:
        try:
            values: list[np.ndarray[Any, Any]] = self._session.run(self._variables, options=options)
        except tf.errors.FailedPreconditionError as error:
            raise UsageError(
                "the variables of the graph have no values yet: run tf.compat.v1.global_variables_initializer() before "
                f"the first batch ({error.message.splitlines()[0]})"
            ) from error
        return values

    def _write(self, values: Sequence[np.ndarray[Any, Any]]) -> None:
        self._session.run(
            [variable.initializer for variable in self._variables],
            {variable.initializer.inputs[1]: value for variable, value in zip(self._variables, values, strict=True)},
        )


def synchronize(variables: Variables, ring: HorovodRing, root: int) -> int:
    """Carry out `Framework.synchronize`."""
    place = ring.place
    if place is None:
        raise RingBroken("this process is in no ring")
    if place.size == 1:
        return 0
    mine = variables.describe()
    if place.rank == root:
        head = msgspec.msgpack.encode(mine)
        ring.broadcast(head, root)
    else:
        head = ring.broadcast(None, root)
        theirs = msgspec.msgpack.decode(head, type=list[Described])
        check_same(mine, theirs, f"rank {place.rank}", f"rank {root}")
    with ring.failing():
        return len(head) + variables.broadcast(root, receive=place.rank != root)


def _send_alone(variable: Any, root: int, name: str, receive: bool) -> None:
    kind = variable.dtype.base_dtype
    with tf.device("CPU:0"):
        value = variable.read_value()  # shares the variable's memory
        if kind == tf.bool:
            received = hvd.broadcast(value, root, name=name)
        else:  # as bytes, so that every type travels, also those that Horovod does not know
            received = tf.bitcast(hvd.broadcast(tf.bitcast(value, tf.uint8), root, name=name), kind)
    if receive:
        variable.assign(received)


def broadcast_arrays(arrays: Sequence[np.ndarray[Any, Any]], root: int) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of rank `root` on all workers."""
    small = [index for index, array in enumerate(arrays) if array.nbytes < LARGE_BYTES]
    received = list(arrays)
    packed = np.concatenate([_as_bytes(arrays[index]) for index in small] or [np.zeros(0, np.uint8)])
    packed = broadcast_bytes(packed, root, "edl_state_small")
    ends = np.cumsum([arrays[index].nbytes for index in small])
    for index, end in zip(small, ends, strict=True):
        like = arrays[index]
        received[index] = np.frombuffer(packed[end - like.nbytes : end].tobytes(), like.dtype).reshape(like.shape)
    for index, like in enumerate(arrays):
        if like.nbytes >= LARGE_BYTES:
            whole = broadcast_bytes(_as_bytes(like), root, f"edl_state_{index}")
            received[index] = whole.view(like.dtype).reshape(like.shape)
    return received


def broadcast_bytes(array: np.ndarray[Any, Any], root: int, name: str) -> np.ndarray[Any, Any]:
    """Return the bytes of rank `root` on all workers; works in scripts without eager execution too."""
    if not array.size:
        return array
    with context.eager_mode(), tf.device("CPU:0"):
        received: np.ndarray[Any, Any] = hvd.broadcast(tf.convert_to_tensor(array), root, name=name).numpy()
    return received


def _bytes(values: Sequence[np.ndarray[Any, Any]]) -> int:
    return sum(value.nbytes for value in values)


def _as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _describe(name: str, variable: Any) -> Described:
    return Described(name, tf.as_dtype(variable.dtype).base_dtype.name, tuple(variable.shape.as_list()))


def check_same(mine: list[Described], theirs: list[Described], me: str, them: str) -> None:
    """Raise UsageError where types, shapes or the number of variables differ."""
    for here, there in zip(mine, theirs, strict=False):
        if (here.dtype, here.shape) != (there.dtype, there.shape):  # names are numbered by what else a script builds
            raise _different(_shown(here), _shown(there), me, them)
    if len(mine) != len(theirs):
        raise _different(f"{len(mine)} variables", f"{len(theirs)}", me, them)


def _shown(variable: Described) -> str:
    return f"{variable.name} ({variable.dtype}{list(variable.shape)})"


def _different(mine: str, theirs: str, me: str, them: str) -> UsageError:
    return UsageError(f"the model of {me} is not that of {them}: {mine} here, {theirs} there. {ALIKE}")


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
