"""An optimizer of TensorFlow 1 (`tf.compat.v1.train`), in a graph or eagerly.

Owns: what `edl.tensorflow.Optimizer` does to it. Does not own: the collectives (`edl.tensorflow.tf_reducer`).

As with Horovod, gradients are averaged in `compute_gradients`, so that a script may clip them before `apply_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from edl.errors import UsageError
from edl.tensorflow.graph_values import PacedV1, TensorRate
from edl.tensorflow.tf_reducer import Reducer


class Elastic:
    """A mixin in front of the class of a wrapped optimizer."""

    _edl: Reducer
    _edl_computed: bool
    _edl_variables: dict[Any, Any]

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return averaged gradients with their variables."""
        self._edl_computed = True
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        self._edl_variables.update((variable.ref(), variable) for _, variable in pairs)
        averaged = self._edl.average([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        if averaged is None:  # void: apply_gradients will leave the variables alone
            return list(pairs)
        return [(gradient, variable) for gradient, (_, variable) in zip(averaged, pairs, strict=True)]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Make the update, unless the mini-batch is void."""
        pairs = list(grads_and_vars)
        if not self._edl_computed and not self._edl.is_averaged([variable for _, variable in pairs]):
            raise UsageError(
                "edl.Optimizer: apply_gradients() got gradients that were not averaged; "
                "take them from its compute_gradients() or from an edl.GradientTape(), or call minimize()"
            )
        if self._edl.skips():
            return None
        # The first samples of all, which may come inside the graph, settle the rate: it is read after the gradients.
        with tf.control_dependencies([gradient for gradient, _ in pairs if gradient is not None]):
            return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]


def attach(optimizer: Any, reducer: Reducer, rate: TensorRate) -> None:
    """Make `optimizer` average its gradients through `reducer`, and scale its learning rate by `rate`."""
    kind = type(optimizer)
    members = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    optimizer.__class__ = type(kind.__name__, (Elastic, PacedV1, kind), members)
    optimizer._edl = reducer
    optimizer._edl_rate = rate
    optimizer._edl_computed = False
    optimizer._edl_variables = {}


def is_v1(optimizer: object) -> bool:
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)
