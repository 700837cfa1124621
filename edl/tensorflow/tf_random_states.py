"""Random states of a worker of TensorFlow: seeds of Keras' layers, and TensorFlow's global generator.

Owns: taking their states and giving them back. Does not own: their form in a checkpoint (`edl.trainer.random_states`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import stateful_random_ops

GENERATOR: Final = "tensorflow.generator."  # and the number of its algorithm


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
    """The global one, where the script has asked for it: to ask for it here would make one."""
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
