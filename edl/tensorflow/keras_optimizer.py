"""Make any Keras optimizer average gradients over the ring before it applies them.

Owns: what `edl.tensorflow.Optimizer` does to a Keras optimizer.
Does not own: the collectives (`edl.tensorflow.tf_reducer`).

Horovod's own wrapper for Keras runs without error under Keras 3 and reduces nothing. All ways into a Keras 3 optimizer
(`apply_gradients`, `minimize`, `fit`) lead through `apply`. The optimizer stays the same object and gets a class that
inherits from its own, under the same name, so that saved models know it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from edl.core.worker.next_move import NEVER
from edl.errors import UsageError
from edl.tensorflow.graph_values import PacedKeras, TensorRate
from edl.tensorflow.kernels import kernels_for
from edl.tensorflow.tf_reducer import Reducer
from edl.tensorflow.tf_tensors import behind, named
from edl.trainer.updates_due import UpdatesDue


class GradientsFirst:
    """A mixin in front of the class of an optimizer: an update counts only if it is made.

    Keras counts its iterations without regard to the gradients. So where these fail with the ring, or at the end of the
    data, where `fit` asks for one batch more and gets none, it may count a step that is none, on one worker and not on
    another. Here nothing happens before the gradients are there.

    Keras keeps something for those variables only that the first update is for. Which these are is known to a newcomer
    after its rehearsal, and not to the worker whose state it gets, if that has made no update yet. All keep the same.
    """

    _edl_build: Callable[[Sequence[Any]], None] | None = None

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        gradients = list(grads)
        if self._edl_build is not None and not self.built:  # type: ignore[attr-defined]
            self._edl_build([] if trainable_variables is None else list(trainable_variables))
        # One operation that waits for all: each of an update's waits for it alone, instead of for each gradient.
        with tf.control_dependencies([tf.group(*(gradient for gradient in gradients if gradient is not None))]):
            super().apply(gradients, trainable_variables)  # type: ignore[misc]


class Elastic(GradientsFirst):
    """A mixin in front of the class of a wrapped optimizer."""

    _edl: Reducer | None = None  # None in a copy: what is not wrapped does not reduce

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Average the gradients, unless a tape of edl's has, then apply them, unless the mini-batch is void."""
        gradients: list[Any] | None = list(grads)
        if self._edl is not None and gradients:
            variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)  # type: ignore[attr-defined]
            if self._edl.is_averaged(variables):
                gradients = None if self._edl.skips() else gradients
            else:
                gradients = self._edl.average(gradients, variables)
            if gradients is not None and tf.executing_eagerly() and not self._edl.goes_on():
                gradients = None
        if gradients is not None:
            super().apply(gradients, trainable_variables)


def order(optimizer: Any, build: Callable[[Sequence[Any]], None]) -> None:
    """Make updates of an optimizer, wrapped or not, count only if they are made. `build` is called before the first,
    with the variables that it is for.
    """
    if not isinstance(optimizer, GradientsFirst):
        _mix(optimizer, GradientsFirst)
    object.__setattr__(optimizer, "_edl_build", build)


def attach(optimizer: Any, reducer: Reducer, rate: TensorRate) -> None:
    """Make `optimizer` average its gradients through `reducer`, and scale its learning rate by `rate`."""
    _mix(optimizer, Elastic, _edl=reducer)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    _mix(optimizer.inner_optimizer if scaled else optimizer, PacedKeras, _edl_rate=rate)


def _mix(optimizer: Any, mixin: type, **attributes: object) -> None:
    kind = type(optimizer)
    members = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
    # Past Keras's own __setattr__, which would track what is set as part of the optimizer's state.
    object.__setattr__(optimizer, "__class__", type(kind.__name__, (mixin, kind), members))
    for name, value in attributes.items():
        object.__setattr__(optimizer, name, value)


def check_fit(model: Any) -> None:
    """Raise UsageError for a compiled model that cannot be trained elastically."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(inner, Elastic):
        # Its cond on finite gradients would be taken by some workers and not by others, and they would wait for ever.
        raise UsageError(
            "model.compile(optimizer=...): Keras put a LossScaleOptimizer around edl.Optimizer; wrap it the other way "
            "round: edl.Optimizer(keras.optimizers.LossScaleOptimizer(optimizer), model=model)"
        )
    if not isinstance(optimizer, Elastic):
        raise UsageError("model.compile(optimizer=...) was not given what edl.Optimizer returned: nothing is averaged")
    if getattr(model, "steps_per_execution", 1) != 1:
        raise UsageError(
            f"model.compile(steps_per_execution={model.steps_per_execution}): edl must be told after each batch; "
            "leave it at 1"
        )
    if model.jit_compile and not model.run_eagerly:
        raise UsageError(
            "model.compile(jit_compile=True): XLA knows no all-reduce of Horovod's; pass jit_compile=False"
        )


def updated(optimizer: Any) -> list[Any]:
    """Return the variables that its updates change, and nothing else does."""
    others = {id(one) for one in hyper_parameters(optimizer)}
    return [one for one in (*optimizer._trainable_variables, *optimizer.variables) if id(one) not in others]


def owners(optimizers: Iterable[Any], variables: Sequence[Any]) -> list[int]:
    """Return, for each variable, the number of the trained one which it is, or which it is kept of, by Keras's names.
    What is kept of none, or of one that cannot be told, counts as the first's.
    """
    trained = [one for optimizer in optimizers for one in optimizer._trainable_variables]
    numbers, by_name = dict[Any, int](), dict[str, int]()
    for one in trained:
        name, variable = named(one)
        number = numbers.setdefault(variable.ref(), len(numbers))
        by_name.setdefault(name.partition(":")[0].replace("/", "_"), number)
    for optimizer in optimizers:
        for one in optimizer.variables:
            parts = one.path.rpartition("/")[2].split("_")
            names = ("_".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
            number = next((by_name[name] for name in names if name in by_name), 0)
            numbers.setdefault(behind(one).ref(), number)
    return [numbers.get(one.ref(), 0) for one in variables]


def is_wrapped(optimizer: Any) -> bool:
    """Tell whether edl has wrapped the optimizer, or the one whose loss it scales."""
    return isinstance(optimizer, Elastic) or isinstance(getattr(optimizer, "inner_optimizer", None), Elastic)


def is_keras(optimizer: object) -> bool:
    return isinstance(optimizer, keras.optimizers.Optimizer)


def counts(optimizer: Any) -> list[int]:
    """Return numbers of which each update changes one at least: a scaled loss that is not finite is an update too."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return [int(optimizer.iterations.numpy())]
    made = int(optimizer.inner_optimizer.iterations.numpy())
    if not optimizer.built:
        return [0, int(optimizer.initial_scale), made]
    return [int(optimizer.step_counter.numpy()), int(optimizer.dynamic_scale.numpy()), made]


def hyper_parameters(optimizer: Any) -> list[Any]:
    """Return the hyper-parameters that are variables: a learning rate without a schedule, the scale of a loss."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return [optimizer.step_counter, optimizer.dynamic_scale, *hyper_parameters(optimizer.inner_optimizer)]
    rate = optimizer._learning_rate
    return [rate] if isinstance(rate, keras.Variable) else []


# What runs inside of a graph tells Python nothing, so updates are known by what Keras's optimizers count.


class CountedUpdates(UpdatesDue):
    """Counts of updates, looked at in each mini-batch. Counts on a GPU are left alone, as to read one waits for the
    whole step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counted: list[_Counted] = []
        self._regular: _Counted | None = None  # the only optimizer, while its updates are due

    def add(self, optimizer: Any, prefix: str) -> None:
        """Expect updates by a wrapped `optimizer` of Keras, whose gradients are averaged by names of `prefix`."""
        if tf.executing_eagerly() and "GPU" not in optimizer.iterations.value.device:
            self._counted.append(_Counted(optimizer, prefix))
            self.expect(len(self._counted) - 1)

    def missing(self, step: int) -> tuple[int, ...]:
        regular = self._regular
        if regular is not None and (now := regular.averaged.value) != regular.seen_at:  # nearly always, and soon told
            regular.seen_at = now
            self._newest[0], self._due[0] = step, step + 1
            return ()
        for number, counted in enumerate(self._counted):
            if counted.has_moved():
                self.note(number, step)
        return super().missing(step)

    def made_after(self, step: int) -> int:
        self.missing(step + 1)
        return super().made_after(step)

    def begin_ring(self, void: tuple[int, ...] = (), step: int = 0) -> None:
        """Do what `UpdatesDue` does; another worker's state may have come."""
        for counted in self._counted:
            counted.begin()
        super().begin_ring(void, step)

    def _set(self, optimizer: int, due: int) -> None:
        super()._set(optimizer, due)
        self.soonest = 0
        self._regular = self._counted[0] if due != NEVER and len(self._counted) == 1 else None


class _Counted:
    """Look at the counts of one optimizer.

    Reading a variable takes a tenth of a millisecond and more, so what edl's own operation counts is looked at first;
    the counts are read only where that stands still: executing eagerly, by a tape, or where there was no update.
    """

    def __init__(self, optimizer: Any, prefix: str) -> None:
        self._optimizer = optimizer
        kernels = None if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else kernels_for([])
        self.averaged = ctypes.c_int64() if kernels is None else kernels.averaged(prefix)
        self.begin()

    def begin(self) -> None:
        self._seen, self._read_at = counts(self._optimizer), self.averaged.value
        self.seen_at = self._read_at

    def has_moved(self) -> bool:
        """Tell whether there was an update since this was asked last."""
        now = self.averaged.value
        if now != self.seen_at:
            self.seen_at = now
            return True
        expected = [one + now - self._read_at for one in self._seen]
        self._seen, self._read_at = counts(self._optimizer), now
        return self._seen != expected
