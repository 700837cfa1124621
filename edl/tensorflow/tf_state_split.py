"""The state of models and optimizers in two parts, for a newcomer that gets it beside a step.

Owns: what is of which part, and their bytes. Does not own: what makes up the state (`edl.tensorflow.tf_framework`), how
bytes travel (`edl.transport.state_stream`), nor when (`edl.trainer.state_handoff`).

Early: statistics and hyper-parameters, which forward passes and schedules change. Late: the other variables, which only
an update changes. They are sent as they were read: an update that comes meanwhile goes into other memory.

A `tf.function` makes its update without coming back to Python. So at a newcomer edl's own operation, through which all
averaged gradients go before the first variable is touched, calls for the rest of the state (`edl.tensorflow.kernels`).

The late part may go in portions. One is of some variables that are trained, and of all that optimizers keep of these:
so from the update before which it has come on, each is changed as the sender's is. What is kept of none goes first.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from edl.core.worker.model_state import cut
from edl.core.worker.worker_inputs import WHOLE, StatePortion
from edl.errors import RingBroken, UsageError
from edl.tensorflow.kernels import Answer, BeforeUpdate
from edl.tensorflow.tf_state import Described, EagerVariables, check_same
from edl.trainer.framework_port import Late, Parted

logger = logging.getLogger("edl")

TOGETHER_BYTES = 1 << 18  # smaller variables are sent together
PART_BYTES = 1 << 20


class InParts(NamedTuple):
    """Variables of what was wrapped, in the same order on all workers."""

    early: EagerVariables
    late: EagerVariables
    owners: Sequence[int]  # of each of `late`: the number of the one that is trained which it is, or is kept of


class Tracked(Protocol):
    def state_in_parts(self) -> InParts:
        """Raises UsageError where a model has not all its variables yet."""

    def waits_for_state(self) -> bool:
        """Tell whether each update of what was wrapped comes after edl's own operation, or after a call of edl's."""

    def counts(self) -> object:
        """Return what each update changes."""

    def before_update(self) -> bool:
        """Tell the trainer that this mini-batch's update is about to be made; return False where it is void."""

    def state_came(self) -> None:
        """Note that the whole state is another worker's now."""


class BothParts(msgspec.Struct, frozen=True, array_like=True):
    """Descriptions of both parts, or of a portion of the late one, without contents."""

    early: list[Described] | None  # None: it is between the first portion and the last
    late: list[Described]
    begin: int  # the first that is trained which it is of
    end: int  # and the first after it which it is not of


class TensorFlowApart:
    """`edl.trainer.framework_port.Apart`."""

    def __init__(self, holder: Tracked, before_update: BeforeUpdate) -> None:
        self._holder = holder
        self._before_update = before_update
        self._cuts = [0]  # those that are trained with which portions begin, as long as a state is sent in some
        self._counts: object = None  # what updates change, as it was when this mini-batch began

    def given(self) -> bool:
        return self._holder.waits_for_state()

    def size(self) -> int:
        return sum(map(_size, self._holder.state_in_parts().late.describe()))

    def parted(self, portion: StatePortion = WHOLE) -> Parted:
        state = self._holder.state_in_parts()
        if portion.is_first:
            self._cuts = cut(_sizes(state), portion.of)
        begin = self._cuts[portion.first]
        end = max(state.owners, default=0) + 1 if portion.is_last else self._cuts[portion.until]
        late, whole = _some(state, begin, end), portion.is_first or portion.is_last
        head = BothParts(state.early.describe() if whole else None, late.describe(), begin, end)
        early = b"".join(map(_bytes_of, state.early.values())) if whole else b""
        return Parted(msgspec.msgpack.encode(head), early, Read(late))

    def expect(self) -> None:
        holder = self._holder
        self._counts = holder.counts()
        self._before_update.ask(lambda: _answer(holder))

    def take_early(self, description: bytes, early: memoryview) -> Late:
        holder = self._holder
        head, state = msgspec.msgpack.decode(description, type=BothParts), holder.state_in_parts()
        mine, theirs = _some(state, head.begin, head.end), head.early or []
        known = [] if head.early is None else state.early.describe()
        check_same([*known, *mine.describe()], [*theirs, *head.late], "this worker", "the others")
        if head.early is not None:
            state.early.put(_values(head.early, early))
        tensors = list[Any]()

        def unpack(first: Callable[[int], memoryview]) -> None:
            with context.eager_mode(), tf.device("CPU:0"):
                for form, begin, end in _places(head.late):
                    came = first(end)[begin:end]
                    if len(came) < end - begin:
                        return  # `take` says so
                    tensors.append(_tensor(form, came))

        def take(late: memoryview) -> None:
            self._before_update.ask(None)
            _check_length(head.late, late)
            with context.eager_mode():
                if holder.counts() != self._counts:
                    raise RingBroken("an update was made before the state for it had come")
                mine.put(tensors)
                holder.state_came()
            tensors.clear()  # else an update would copy what it finds shared

        return Late(take, unpack)

    def raw(self, contents: Sequence[Any]) -> bytes:
        return b"".join(_bytes_of(one if isinstance(one, np.ndarray) else one.numpy()) for one in contents)

    def put(self, contents: Sequence[Any], raw: memoryview) -> None:
        forms = [Described("", tf.as_dtype(one.dtype).base_dtype.name, tuple(one.shape)) for one in contents]
        for one, value in zip(contents, _values(forms, raw), strict=True):
            if isinstance(one, np.ndarray):
                np.copyto(one, value)
            else:
                one.assign(value)


def _some(state: InParts, begin: int, end: int) -> EagerVariables:
    return state.late.some([number for number, owner in enumerate(state.owners) if begin <= owner < end])


def _sizes(state: InParts) -> list[int]:
    """Return the size of each variable that is trained, with what is kept of it."""
    sizes = [0] * (max(state.owners, default=0) + 1)
    for owner, form in zip(state.owners, state.late.describe(), strict=True):
        sizes[owner] += _size(form)
    return sizes


def _size(form: Described) -> int:
    return _kind(form).itemsize * math.prod(form.shape)


def _answer(holder: Tracked) -> Answer:
    """Answer a traced step, on a thread of TensorFlow's, while the script's waits for its function: nothing may be
    raised here.
    """
    try:
        return Answer.GOES_ON if holder.before_update() else Answer.VOID
    except Exception:
        logger.exception("the state of another worker could not be taken over")
        return Answer.FAULT


class Read:
    """`edl.transport.state_stream.Contents` of variables as they were when this was made."""

    def __init__(self, variables: EagerVariables) -> None:
        self._groups = list(_grouped(variables.values()))
        self._begins = [0, *itertools.accumulate(map(len, self._groups))]

    @property
    def size(self) -> int:
        return self._begins[-1]

    def part(self, begin: int) -> memoryview:
        at = bisect.bisect_right(self._begins, begin) - 1
        within = begin - self._begins[at]
        return self._groups[at][within : within + PART_BYTES]

    def whole(self) -> bool:
        return True


def _grouped(values: Iterable[np.ndarray[Any, Any]]) -> Iterator[memoryview]:
    """Join small contents; large ones stay alone, and are not copied."""
    small = bytearray()
    for value in values:
        if value.nbytes < TOGETHER_BYTES:
            small += _bytes_of(value)
        if small and (value.nbytes >= TOGETHER_BYTES or len(small) >= TOGETHER_BYTES):
            yield memoryview(small)
            small = bytearray()
        if value.nbytes >= TOGETHER_BYTES:
            yield _bytes_of(value)
    if small:
        yield memoryview(small)


def _values(forms: Sequence[Described], raw: memoryview) -> list[np.ndarray[Any, Any]]:
    _check_length(forms, raw)
    return [_value(form, raw[begin:end]).copy() for form, begin, end in _places(forms)]


def _places(forms: Sequence[Described]) -> Iterator[tuple[Described, int, int]]:
    """Return each form with where its bytes begin and end in the bytes of all."""
    ends = list(itertools.accumulate(map(_size, forms), initial=0))
    return zip(forms, ends, ends[1:], strict=False)


def _check_length(forms: Sequence[Described], raw: memoryview) -> None:
    """Raise UsageError where `raw` is not as long as the contents of all forms."""
    *_, (_, _, end) = [(None, 0, 0), *_places(forms)]
    if end != len(raw):
        raise UsageError(
            f"{len(raw)} bytes have come for state of {end}: all workers must build the same model, wrap the same "
            "optimizers and register the same values"
        )


def _value(form: Described, raw: memoryview) -> np.ndarray[Any, Any]:
    return np.frombuffer(raw, _kind(form)).reshape(form.shape)


def _tensor(form: Described, raw: memoryview) -> Any:
    """Make a tensor in memory of TensorFlow's own, which becomes the variable's: an update copies a tensor in other
    memory.
    """
    value = _value(form, raw)
    if not form.shape:
        return tf.constant(value)
    made = tf.raw_ops.Empty(shape=form.shape, dtype=form.dtype, init=False)
    np.copyto(made._numpy(), value)
    return made


def _kind(form: Described) -> np.dtype[Any]:
    return np.dtype(tf.as_dtype(form.dtype).as_numpy_dtype)


def _bytes_of(value: np.ndarray[Any, Any]) -> memoryview:
    lying: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return memoryview(lying)
