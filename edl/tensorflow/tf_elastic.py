"""Horovod's elastic names for TensorFlow: `import edl.tensorflow as hvd`, then `hvd.elastic.run`, `TensorFlowState`.

docs/migrating.md says what they mean here. Owns: what such a script names. Does not own: when the training function is
left and called anew (`edl.trainer.elastic_run`), nor moving variables (`edl.tensorflow.tf_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import keras
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from edl.errors import RingBroken, UsageError
from edl.tensorflow import tf_horovod_names
from edl.tensorflow.tf_process import framework, trainer
from edl.trainer.elastic_run import Run, State
from edl.trainer.registered_state import value_of_root

P = ParamSpec("P")
R = TypeVar("R")
AnyState = TypeVar("AnyState", bound=State)

init = trainer.init
shutdown = trainer.shutdown
_run = Run(trainer, framework.ring, framework.updates)


def run(func: Callable[Concatenate[AnyState, P], R]) -> Callable[Concatenate[AnyState, P], R]:
    """Decorate the function that trains; its first argument is the state.

    It is called once the workers are there, and called anew, from the present state, on all of them whenever workers
    have come, left or died: at the end of a mini-batch, or where a collective in it has failed. A newcomer's first two
    mini-batches are its rehearsal, after which its function is called anew, too.
    """
    return _run(func)


def run_fn(
    func: Callable[Concatenate[AnyState, P], R],
    reset: Callable[[], object],  # noqa: ARG001 - Horovod's signature: what forms its ring anew, and edl does that
) -> Callable[Concatenate[AnyState, P], R]:
    """Do what `run` does, by the name of what Horovod's `run` is made of."""
    return run(func)


def end_batch_of_fit() -> None:
    """End a mini-batch of `fit`. Inside a training function its states' values go along."""
    _run.end_batch_of_loop()


class TensorFlowState(State):
    """The state that travels to newcomers: variables, and plain values as attributes (`state.batch`).

    Args:
        variables: of TensorFlow or Keras; by default all of the graph, by the session that is the default one.
        session: not needed: it is the default one.
        kwargs: values: whatever `edl.register` takes.

    Unless `edl.Optimizer` or `hvd.DistributedOptimizer` was given the optimizer, edl does not see updates: then every
    `commit()` is the end of a mini-batch, so there must be one after each, and none elsewhere.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:  # noqa: ARG002 - Horovod's signature
        if variables is None and tf.executing_eagerly():
            raise UsageError("TensorFlowState(variables=None): give the variables; only a graph knows all of its own")
        if variables is not None:
            framework.track_variables(variables)
        self.__dict__["variables"] = variables
        framework.expect_traces()
        super().__init__(_run, kwargs, {})

    def _of_first(self, values: dict[str, Any]) -> dict[str, Any]:
        if self.variables is None:
            raise UsageError("TensorFlowState.sync(): give it variables=...: only a session knows those of its graph")
        return _first_has(self.variables, values)


class TensorFlowKerasState(State):
    """The state that travels to newcomers: a Keras model with its optimizer, and plain values as attributes
    (`state.batch`).

    Args:
        model: a Keras model, built.
        optimizer: its optimizer; by default the one it was compiled with. It averages only what
            `hvd.DistributedGradientTape` has not, and only if it was given to `hvd.DistributedOptimizer`.
        backend: not needed.
        kwargs: values: whatever `edl.register` takes.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:  # noqa: ARG002 - Horovod's signature
        if not isinstance(model, keras.Model) or not model.built:
            raise UsageError(
                f"TensorFlowKerasState(model=...): a {type(model).__name__} without variables; give a Keras model with "
                "an Input, or call model.build(input_shape) first"
            )
        optimizer = optimizer or getattr(model, "optimizer", None)
        framework.add_model(model)
        if optimizer is not None:
            framework.track(optimizer)
        self.__dict__.update(model=model, optimizer=optimizer)
        framework.expect_traces()
        super().__init__(_run, kwargs, {})

    def _of_first(self, values: dict[str, Any]) -> dict[str, Any]:
        variables = [] if self.optimizer is None else self.optimizer.variables
        return _first_has([*self.model.variables, *variables], values)


def _first_has(variables: Sequence[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return rank 0's values, and put its variables into these. A broken ring raises what Horovod's collectives do."""
    tf_horovod_names.broadcast_variables(variables, 0)
    try:
        found: dict[str, Any] = value_of_root(framework, values, 0, "state.sync()")
    except RingBroken as error:
        raise HorovodInternalError(str(error)) from error
    return found


KerasState = TensorFlowKerasState

__all__ = ["KerasState", "TensorFlowKerasState", "TensorFlowState", "init", "run", "run_fn", "shutdown"]
