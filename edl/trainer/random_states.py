"""A worker's own states of random numbers: Python's, numpy's, and those of its framework.

Owns: their form in a checkpoint, and beginning those of Python and numpy by a seed. Does not own: the framework's
(behind its port), nor when they are taken and given back (`edl.trainer.snapshot_writer`, `edl.trainer.first_state`).
"""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
import numpy as np

from edl.errors import CheckpointError
from edl.trainer.framework_port import Framework


class _Numpy(msgspec.Struct, frozen=True):
    keys: bytes
    place: int
    has_gauss: int
    cached_gaussian: float


class _Python(msgspec.Struct, frozen=True):
    version: int
    numbers: tuple[int, ...]
    gauss_next: float | None


def begin_with(seed: int) -> None:
    """Begin the numbers of Python's `random`, and of `numpy.random.rand()` and its like, by a seed of 63 bits."""
    random.seed(seed)
    # Of 32 bits: of a list, numpy takes five times as long, in each part of each step.
    np.random.seed(seed >> 31)  # noqa: NPY002


def taken(framework: Framework) -> dict[str, bytes]:
    """Return the present states by their generators."""
    version, numbers, gauss_next = random.getstate()
    _, keys, place, has_gauss, cached = _numpy_state()
    return {
        "python": msgspec.msgpack.encode(_Python(version, numbers, gauss_next)),
        "numpy": msgspec.msgpack.encode(_Numpy(keys.tobytes(), place, has_gauss, cached)),
        **framework.random_states(),
    }


def give_back(framework: Framework, states: dict[str, bytes]) -> None:
    """Restore the states, so that the same numbers follow as after `taken`. Raises CheckpointError."""
    theirs = dict(states)
    try:
        python = msgspec.msgpack.decode(theirs.pop("python"), type=_Python)
        numpy = msgspec.msgpack.decode(theirs.pop("numpy"), type=_Numpy)
        random.setstate((python.version, python.numbers, python.gauss_next))
        keys = np.frombuffer(numpy.keys, np.uint32)
        np.random.set_state(("MT19937", keys, numpy.place, numpy.has_gauss, numpy.cached_gaussian))  # noqa: NPY002
        framework.put_random_states(theirs)
    except (KeyError, ValueError, TypeError, RuntimeError, struct.error, msgspec.MsgspecError) as error:
        raise CheckpointError(f"the states of random numbers in it cannot be taken over: {error}") from error


def _numpy_state() -> tuple[Any, ...]:
    # This generator is the one that `numpy.random.rand()` and its like share.
    state: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    return tuple(state)
