"""Remember whose gradients a tape has averaged already.

Owns: that memory, between the tape and the optimizer that applies what the script has made of them. Does not own:
averaging (`edl.tensorflow.tf_reducer`).

To average what is averaged would be right as well, as shares add up to one, but would cost as much once more. So what
is not known here is averaged: a function that is traced may be called by another, and eagerly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from edl.tensorflow.tf_variables import behind

MARK = "edl_averaged"  # a collection of the graph


class Averaged:
    """The memory of one process. Eagerly it holds for one step; of what is traced, for the function around it."""

    def __init__(self) -> None:
        self._step = 0
        self._eagerly: set[int] = set()

    def note(self, variables: Iterable[Any], step: int) -> None:
        """Note that gradients of these were averaged."""
        ids = {_identity(variable) for variable in variables}
        if tf.executing_eagerly():
            self._of(step).update(ids)
            return
        graph = tf.compat.v1.get_default_graph()
        while graph is not None:  # a loop's body, and what is around it
            graph.get_collection_ref(MARK).extend(ids)
            graph = getattr(graph, "outer_graph", None)

    def take(self, variables: Sequence[Any], step: int) -> bool:
        """Tell whether gradients of all of these were averaged since they were applied last, and forget it."""
        eagerly = tf.executing_eagerly()
        noted = self._of(step) if eagerly else set(tf.compat.v1.get_default_graph().get_collection_ref(MARK))
        ids = {_identity(variable) for variable in variables}
        if not ids or not ids <= noted:
            return False
        noted -= ids
        if not eagerly:
            tf.compat.v1.get_default_graph().get_collection_ref(MARK)[:] = noted
        return True

    def _of(self, step: int) -> set[int]:
        if step != self._step:
            self._step, self._eagerly = step, set()
        return self._eagerly


def _identity(variable: Any) -> int:
    """Keras's variables stand for one of TensorFlow's."""
    return id(behind(variable))
