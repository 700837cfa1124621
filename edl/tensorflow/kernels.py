"""edl's own operations for gradients in a graph, where they were built (`_kernels.cpp`).

Owns: finding them, and their gradients. Does not own: what is done where they are missing
(`edl.tensorflow.tf_reducer`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

TYPES = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})
AVERAGED, SUMMED = 0, 1  # parts of the scale
ASKED = ctypes.CFUNCTYPE(ctypes.c_int)


class Answer(IntEnum):
    """Answers to a traced step, numbered as in `_kernels.cpp`."""

    GOES_ON = 0
    VOID = 1  # the update is not made
    FAULT = 2  # nor this one, and the script hears of it


class BeforeUpdate:
    """The question that a traced step asks Python before it touches a variable."""

    def __init__(self, set_asked: Callable[[Any], None]) -> None:
        self._set = set_asked
        self._ask: Callable[[], Answer] | None = None
        self._called = ASKED(self._answer)  # for as long as the process lives: a step may be just about to ask

    def ask(self, ask: Callable[[], Answer] | None) -> None:
        """Let `ask` answer from now on, on a thread of TensorFlow's; None: steps ask no longer."""
        self._ask = ask
        self._set(ASKED() if ask is None else self._called)

    def _answer(self) -> int:
        ask = self._ask
        return Answer.GOES_ON if ask is None else ask()


@dataclass(frozen=True)
class Kernels:
    """The operations, which a process has once."""

    _operations: Any
    waited_ns: Callable[[], int]  # by all steps, for their peers
    before_update: BeforeUpdate
    _averaged: Callable[[bytes], int]

    def weighed(self, values: Sequence[Any], parts: Sequence[int], scale: Any, optimizer: str) -> list[Any]:
        """Return the values of gradients, each multiplied by its part of the scale as soon as it is there."""
        weigh = self._operations.edl_weighed
        return [weigh(one, scale, optimizer=optimizer, part=part) for one, part in zip(values, parts, strict=True)]

    def together(self, values: Sequence[Any], optimizer: str) -> list[Any]:
        """Return the values, none before all are there."""
        return list(self._operations.edl_together(values, optimizer=optimizer))

    def averaged(self, optimizer: str) -> ctypes.c_int64:
        """Return the number of updates of an optimizer that came by `together`, which goes on counting."""
        return ctypes.c_int64.from_address(self._averaged(optimizer.encode()))


def kernels_for(values: Sequence[Any]) -> Kernels | None:
    """Return the operations, or None where they cannot take the values."""
    return _loaded() if all(one.dtype in TYPES for one in values) else None


@cache
def _loaded() -> Kernels | None:
    built = Path(__file__).with_name(f"_kernels.tensorflow-{tf.__version__}.so")
    if not built.exists() or tf.config.list_physical_devices("GPU"):  # they work in main memory
        return None
    operations = tf.load_op_library(str(built))  # first: it knows what is registered while it loads
    library = ctypes.CDLL(str(built))
    library.edl_waited.restype = ctypes.c_int64
    library.edl_before_update.argtypes = [ASKED]
    library.edl_before_update.restype = None
    library.edl_averaged.argtypes = [ctypes.c_char_p]
    library.edl_averaged.restype = ctypes.c_void_p
    tf.RegisterGradient("EdlWeighed")(_gradient_of_weighed)
    tf.RegisterGradient("EdlTogether")(_gradient_of_together)
    return Kernels(operations, library.edl_waited, BeforeUpdate(library.edl_before_update), library.edl_averaged)


def _gradient_of_weighed(operation: Any, gradient: Any) -> list[Any]:
    scale = operation.inputs[1][operation.get_attr("part")]
    return [gradient * tf.cast(scale, gradient.dtype), None]


def _gradient_of_together(_operation: Any, *gradients: Any) -> list[Any]:
    return list(gradients)
