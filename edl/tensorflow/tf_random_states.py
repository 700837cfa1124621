"""Random states of a worker of TensorFlow: seeds of Keras' layers, and TensorFlow's global generator.

Owns: taking their states and giving them back, and beginning them by a seed. Does not own: their form in a checkpoint
(`edl.trainer.random_states`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import stateful_random_ops

from edl.errors import UsageError
from edl.trainer import random_states

GENERATOR: Final = "tensorflow.generator."  # and the number of its algorithm
HISTORY: Final = (
    "a tf.function draws random numbers by an operation whose numbers depend on how often it has run here, and so on "
    "which virtual workers this worker has: draw them by a layer of Keras, tf.random.get_global_generator(), or "
    "tf.random.stateless_uniform and its like"
)
MOST_DRAWN: Final = 4096  # seeds by which an operation was made, until TensorFlow forgets these


def taken(models: Sequence[Any]) -> dict[str, bytes]:
    """Return the present states; there are none in a graph of TensorFlow 1."""
    if not tf.executing_eagerly():
        return {}
    found = {name: np.asarray(variable).tobytes() for name, variable in _seeds(models)}
    if (generator := _generator()) is not None:
        found[f"{GENERATOR}{int(generator.algorithm)}"] = generator.state.numpy().tobytes()
    return found


def give_back(models: Sequence[Any], states: dict[str, bytes]) -> None:
    """Raises ValueError for what is no such state."""
    if not tf.executing_eagerly():
        return
    for name, variable in _seeds(models):
        if name in states:
            _assign(variable, states[name])
    for name, raw in states.items():
        if name.startswith(GENERATOR):
            _give_back_generator(int(name.removeprefix(GENERATOR)), raw)


def _give_back_generator(algorithm: int, raw: bytes) -> None:
    """Give the state to the generator that is there, as functions that are traced hold on to that."""
    generator = _generator()
    if generator is not None and int(generator.algorithm) == algorithm:
        _assign(generator.state, raw)
    else:
        state = np.frombuffer(raw, np.int64)
        tf.random.set_global_generator(tf.random.Generator.from_state(state, algorithm))


def _generator() -> Any:
    """Return the global generator, where the script has asked for it: to ask for it here would make one."""
    return stateful_random_ops.global_generator


def _assign(variable: Any, raw: bytes) -> None:
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    variable.assign(np.frombuffer(raw, dtype).reshape(tuple(variable.shape)))


def _seeds(models: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Yield the models' seeds: variables that are no weights."""
    for number, model in enumerate(models):
        weights = {id(one) for one in getattr(model, "weights", ())}
        for at, variable in enumerate(getattr(model, "variables", ())):
            if id(variable) not in weights and "seed" in getattr(variable, "path", ""):
                yield f"tensorflow.{number}.{at}", variable


class SeededNumbers:
    """The random numbers of a process, begun anew by the seed of each part of a step.

    Eagerly, TensorFlow's `tf.random.normal` and its like make an operation for each seed, which goes on where it was
    when that seed comes again. In a function such an operation goes on with each call. So each draw gets a seed of its
    own, what is made of seeds is forgotten before one comes again, and functions are refused.
    """

    def __init__(self, models: Callable[[], Sequence[Any]]) -> None:
        self._models = models
        self._seed = 0
        self._draws = 0  # since that seed has begun
        self._drawn: set[int] = set()  # seeds by which operations were made
        random_seed.get_seed = self._next  # all operations ask by this name

    def begin_with(self, seed: int) -> None:
        random_states.begin_with(seed)
        self._seed, self._draws = seed, 0
        if seed in self._drawn or len(self._drawn) >= MOST_DRAWN:
            context.context().clear_kernel_cache()
            self._drawn = set()
        if (generator := _generator()) is not None:
            generator.reset_from_seed(seed)
        states = [variable for _, variable in _seeds(self._models())]
        if (shared := global_state.get_global_attribute("global_seed_generator")) is not None:  # of Keras's functions
            states.append(shared.state)
        for number, variable in enumerate(states):
            kind = tf.as_dtype(variable.dtype).as_numpy_dtype
            variable.assign(np.array(_two_numbers(seed, number, -1), kind))

    def _next(self, op_seed: int | None) -> tuple[int, int]:
        """Return the seeds of an operation that is made now, in the place of TensorFlow's own."""
        if not tf.executing_eagerly():
            raise UsageError(HISTORY)
        self._drawn.add(self._seed)
        self._draws += 1
        return _two_numbers(self._seed, self._draws, -1 if op_seed is None else op_seed)


def _two_numbers(seed: int, number: int, op_seed: int) -> tuple[int, int]:
    digest = hashlib.blake2b(struct.pack("<qqq", seed, number, op_seed), digest_size=8).digest()
    first, second = struct.unpack("<II", digest)
    return first >> 1, second >> 1
