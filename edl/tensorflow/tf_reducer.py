"""Gradients of one optimizer, summed over the ring with each worker's share.

Owns: the collectives of a step, that a failed one makes the mini-batch void (I8), and the memory of what a tape has
averaged already. Does not own: applying the update (`edl.tensorflow.keras_optimizer`, `edl.tensorflow.v1_optimizer`),
nor what a failure leads to (`edl.trainer.trainer`).

Eagerly, all gradients are there before the first is reduced: one grouped all-reduce does it, and a failed one voids the
mini-batch (I8).

Inside a graph or a `tf.function`, each gradient is reduced as soon as backward has it, as with Horovod's own tape. Four
things make that survive changes of the ring:

- No variable may be touched before all gradients are reduced: a gate holds them back, so that a peer's death leaves
  either the old state or the new one, never a mixture (I5).
- What depends on the ring (its size, this worker's share) is read when a step runs, never when it is traced.
- A gradient meets the share, which is no constant. So TensorFlow cannot fold a gradient that is constant, together with
  its reduction, into a constant, as it otherwise would: Horovod's operations are not marked as stateful.
- Names are our own, by position: a newcomer that traced in another order must find its peers.

Weighing and the gate are operations of edl's own (`edl.tensorflow.kernels`), or, where these are missing, many of
TensorFlow's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from edl.collectives.horovod_ring import HorovodRing
from edl.collectives.library_guard import plain
from edl.collectives.name_warmup import Named
from edl.errors import RingBroken, UsageError
from edl.tensorflow.graph_values import TensorNoise, TensorShare
from edl.tensorflow.kernels import AVERAGED, SUMMED, kernels_for
from edl.tensorflow.tf_tensors import behind
from edl.tensorflow.wait_meter import Waiting, when
from edl.trainer.framework_port import StepPort
from edl.trainer.virtual_steps import TAKE_PARTS

MARK = "edl_averaged"  # a collection of the graph
OF_PARTS = f"{TAKE_PARTS}; give each part's gradients to edl.add_gradients(), and apply edl.summed_gradients()"
VOID = "Horovod's ring has broken: this step is void"


class Averaged:
    """The memory, in one process, of whose gradients a tape has averaged already, for the optimizer that applies what
    the script has made of them. Eagerly it holds for one step; of what is traced, for the function around it.

    To average what is averaged would be right as well, as shares add up to one, but would cost as much once more. So
    what is not known here is averaged: a function that is traced may be called by another, and eagerly.
    """

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


class Voidable:
    """Make the mini-batch void where something fails inside because a peer is gone; anything else is raised.

    Eager code, `fit` and PyTorch have edl there anyway. What is inside a `tf.function` or a session cannot be caught
    inside: TensorFlow has no `try` in a graph. So the script has one line around the call, `with edl.voidable():`.
    """

    def __init__(self, trainer: StepPort, ring: HorovodRing) -> None:
        self._trainer, self._ring = trainer, ring

    def __enter__(self) -> None:
        if not tf.executing_eagerly():
            self._trainer.keep_in_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failed = isinstance(error, Exception) and self._ring.is_failure(error)
        if failed:
            self._trainer.void(RingBroken(f"the gradients were not averaged: {plain(str(error))}"))
        return failed


Gradient = Any  # a tf.Tensor, or tf.IndexedSlices, or None
CONVERTED = {tf.bfloat16: tf.float32}  # what Horovod does not take, and what carries it
PARTS = {tf.complex64: tf.float32, tf.complex128: tf.float64}  # the same: as pairs of these


class Measures(NamedTuple):
    waiting: Waiting
    noise: TensorNoise


class Reducer:
    """Averaging of one optimizer's gradients; `number` tells its collectives from other optimizers'."""

    def __init__(
        self,
        trainer: StepPort,
        ring: HorovodRing,
        share: TensorShare,
        measures: Measures,
        averaged: Averaged,
        number: int | str,
    ) -> None:
        self._trainer = trainer
        self._ring = ring
        self._share = share
        self._measures = measures
        self._averaged = averaged
        self.prefix = f"edl_{number}"  # of the names of all that it reduces
        self._sparse: dict[
            int, Any
        ] = {}  # positions of gradients that were sparse here, with the type of their indices
        self._all_present: Any = None
        self._traced: dict[str, Named] = {}
        self.skipped = 0  # updates that were not made, as no worker had samples
        self.asks = True  # each function traced so far asks before its update (`edl.tensorflow.kernels`)
        self._summed_in = 0  # the mini-batch of the newest sum of virtual workers' parts

    def average(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient] | None:
        """Return the gradients of the global batch. None: there is no update in this mini-batch, as it is void or no
        worker has samples in it (only when executing eagerly).
        """
        if self._trainer.virtual:
            return self._of_parts(gradients)
        if not tf.executing_eagerly():
            return _each_present(gradients, self._average_in_graph)
        self._trainer.before_reduce()
        if self.skips():
            return None
        if self._ring.size == 0:
            raise UsageError("edl.Optimizer: no job was joined; call edl.init() before the first step")
        began, self._ring.reduces = time.perf_counter_ns(), True
        try:
            with Voidable(self._trainer, self._ring), self._ring.failing():
                averaged = self._average_now([_carried(_dense(gradient)) for gradient in gradients], variables)
                return [_returned(one, variable.dtype) for one, variable in zip(averaged, variables, strict=True)]
        finally:
            self._ring.reduces = False
            self._trainer.waited(time.perf_counter_ns() - began)
        return None

    def average_of_tape(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient] | None:
        """Average gradients for a tape; the optimizer need not average them again."""
        if self._trainer.virtual:
            raise UsageError(f"edl.GradientTape: take a tf.GradientTape. {OF_PARTS}")
        found = self.average(gradients, variables)
        self._averaged.note(variables, self._trainer.step())
        return found

    def is_averaged(self, variables: Sequence[Any]) -> bool:
        """Tell whether a tape has averaged the gradients of these, which are applied now."""
        return self._averaged.take(variables, self._trainer.step())

    def note_summed(self) -> None:
        """Note that all parts of this step are added up, or that it is void."""
        self._summed_in = self._trainer.step()

    def _of_parts(self, gradients: Sequence[Gradient]) -> list[Gradient] | None:
        """Let an update be made by the gradients of all virtual workers' parts. None: there is none."""
        if not tf.executing_eagerly():
            return _each_present(gradients, self._checked_in_graph)
        self._check_summed()
        return None if self.skips() else list(gradients)

    def _check_summed(self) -> None:
        if self._summed_in != self._trainer.step():
            raise UsageError(OF_PARTS)

    def _checked_in_graph(self, gradients: list[Gradient]) -> list[Gradient]:
        def check() -> bool:
            self._check_summed()
            if not self.goes_on():
                raise RingBroken(VOID)
            return True

        with tf.control_dependencies([tf.numpy_function(check, [], tf.bool, stateful=True)]):
            return [tf.nest.map_structure(tf.identity, one, expand_composites=True) for one in gradients]

    def skips(self) -> bool:
        """Tell, executing eagerly, whether there is no update in this mini-batch. A mini-batch without any worker's
        samples is over all the same, and a caller that looks whether there was an update must see it.
        """
        if not tf.executing_eagerly():
            return False
        self.skipped += self._share.weightless
        return self._trainer.voided or self._share.weightless

    def goes_on(self) -> bool:
        """Wait for a state that is to come before an update is made. False: this mini-batch has become void. Any thread
        may call this.
        """
        self._trainer.await_state()
        return not self._trainer.voided

    def named(self) -> list[Named]:
        """Return what traced graphs reduce. Any thread may call this."""
        return list(self._traced.values())

    # -------------------------------------------------------------------------------------------------- eagerly

    def _average_now(self, gradients: list[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        self._sparse |= {
            position: gradient.indices.dtype
            for position, gradient in enumerate(gradients)
            if isinstance(gradient, tf.IndexedSlices)
        }
        size = self._ring.size
        factor, found = self._share.factor(size), gradients
        if factor != 1.0:
            gradients = [gradient if gradient is None else _scaled(gradient, factor) for gradient in gradients]
        if size == 1:
            return gradients
        filled = [
            _carried(self._zeros(position, variable)) if gradient is None else gradient
            for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        ]
        *averaged, present = self._all_reduced([*filled, self._present(gradients, counts=factor != 0.0)], size)
        own = [gradient for gradient in found if gradient is not None]
        self._measures.noise.measure(own, averaged, self._share.value, f"{self.prefix}_noise")
        if factor and not any(gradient is None for gradient in gradients):
            return averaged
        somewhere = present.numpy() > 0
        return [gradient if there else None for gradient, there in zip(averaged, somewhere, strict=True)]

    def _all_reduced(self, gradients: list[Gradient], size: int) -> list[Gradient]:
        averaged = list(gradients)
        for kind in dict.fromkeys(gradient.dtype for gradient in gradients):
            dense = [
                position
                for position, gradient in enumerate(gradients)
                if gradient.dtype == kind and not isinstance(gradient, tf.IndexedSlices)
            ]
            if dense:
                together = hvd._grouped_allreduce([gradients[position] for position in dense], op=hvd.Average)
                for position, tensor in zip(dense, together, strict=True):
                    averaged[position] = tensor
        for position, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                averaged[position] = self._gathered(_scaled(gradient, 1.0 / size), f"{self.prefix}_{position}")
        return averaged

    def _present(self, gradients: list[Gradient], *, counts: bool) -> Any:
        """Mark which gradients there are here. A gradient that no worker has, no optimizer may see: zeros would let
        momentum and decay go on.
        """
        if counts and all(gradient is not None for gradient in gradients):
            if self._all_present is None or len(self._all_present) != len(gradients):
                self._all_present = tf.ones(len(gradients))
            return self._all_present
        return tf.constant([float(counts and gradient is not None) for gradient in gradients])

    def _zeros(self, position: int, variable: Any) -> Gradient:
        """Make zeros for a variable that the loss does not depend on here, and may on another worker, which waits for
        ours.
        """
        if position not in self._sparse:
            return tf.zeros(variable.shape, variable.dtype)
        indices = tf.zeros([0], self._sparse[position])
        return tf.IndexedSlices(tf.zeros([0, *variable.shape[1:]], variable.dtype), indices, tf.shape(variable))

    # ------------------------------------------------------------------------------------------------ in a graph

    def _average_in_graph(self, gradients: list[Gradient]) -> list[Gradient]:
        # TensorFlow orders only what depends on each other. The weight may be set by the very thread that fetches this
        # step's samples, so it is read after a gradient, which cannot be there before them.
        kinds, gradients = [_values(one).dtype for one in gradients], [_carried(one) for one in gradients]
        with tf.control_dependencies(list(_tensors(gradients[-1]))):
            scale = self._share.tensor(self._trainer.before_reduce)
        kernels = kernels_for([_values(one) for one in gradients])
        if kernels is None:
            return [_returned(*pair) for pair in zip(self._average_by_tensorflow(gradients, scale), kinds, strict=True)]
        parts = [SUMMED if isinstance(one, tf.IndexedSlices) else AVERAGED for one in gradients]
        weighed = kernels.weighed([_values(one) for one in gradients], parts, scale, self.prefix)
        averaged = self._all_summed([_with_values(*pair) for pair in zip(gradients, weighed, strict=True)])
        measured = self._measures.noise.measure(gradients, averaged, scale[1], f"{self.prefix}_noise")
        self._measures.waiting.is_counted(kernels.waited_ns, self._trainer.waited)
        with tf.control_dependencies(measured):
            together = kernels.together(_all_tensors(averaged), self.prefix)
        averaged = tf.nest.pack_sequence_as(averaged, together, expand_composites=True)
        return [_returned(*pair) for pair in zip(averaged, kinds, strict=True)]

    def _average_by_tensorflow(self, gradients: list[Gradient], scale: Any) -> list[Gradient]:
        """Average by TensorFlow's own operations, of which there are many."""
        self.asks = False
        ready = when(_all_tensors(gradients))
        averaged = self._all_summed(_weighed(gradients, scale))
        waited = self._measures.waiting.since(ready, _all_tensors(averaged), self._trainer.waited)
        measured = self._measures.noise.measure(gradients, averaged, scale[1], f"{self.prefix}_noise")
        return _behind_gate(averaged, [*waited, *measured])

    def _all_summed(self, gradients: list[Gradient]) -> list[Gradient]:
        return [self._summed(gradient, f"{self.prefix}_{position}") for position, gradient in enumerate(gradients)]

    def _summed(self, gradient: Gradient, name: str) -> Gradient:
        if isinstance(gradient, tf.IndexedSlices):
            return self._gathered(gradient, name)
        if gradient.shape.is_fully_defined():
            kind: tf.DType = gradient.dtype
            self._traced[name] = Named(name, tuple(gradient.shape), kind.name, kind.size)
        return hvd._allreduce(gradient, op=hvd.Average, name=name, ignore_name_scope=True)

    def _gathered(self, gradient: Any, name: str) -> Any:
        """Gather a sparse gradient: all ranks' rows, one behind the other, which is a sum."""
        return tf.IndexedSlices(
            hvd.allgather(gradient.values, name=f"{name}_values", ignore_name_scope=True),
            hvd.allgather(gradient.indices, name=f"{name}_indices", ignore_name_scope=True),
            dense_shape=gradient.dense_shape,
        )


def _each_present(gradients: Sequence[Gradient], average: Callable[[list[Gradient]], list[Gradient]]) -> list[Gradient]:
    """Average the gradients that are present: in traced code, variables that the loss does not depend on have no
    gradient, on any rank.
    """
    present = [_dense(gradient) for gradient in gradients if gradient is not None]
    averaged = iter(average(present) if present else ())
    return [None if gradient is None else next(averaged) for gradient in gradients]


def _dense(gradient: Gradient) -> Gradient:
    """Make a tensor of a gradient, where it is not sparse or none at all."""
    return gradient if gradient is None or isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)


def _carried(gradient: Gradient) -> Gradient:
    """Convert a gradient to numbers that Horovod takes."""
    if gradient is None:
        return None
    values = _values(gradient)
    if values.dtype in CONVERTED:
        return _with_values(gradient, tf.cast(values, CONVERTED[values.dtype]))
    if values.dtype in PARTS:
        paired = _with_shape(gradient, lambda shape: tf.concat([shape, [2]], 0))
        return _with_values(paired, tf.bitcast(values, PARTS[values.dtype]))
    return gradient


def _with_shape(gradient: Gradient, change: Callable[[Any], Any]) -> Gradient:
    if not isinstance(gradient, tf.IndexedSlices) or gradient.dense_shape is None:
        return gradient
    return tf.IndexedSlices(gradient.values, gradient.indices, change(gradient.dense_shape))


def _returned(gradient: Gradient, kind: Any) -> Gradient:
    """Convert a gradient that Horovod has carried back to numbers of its own `kind`."""
    kind = tf.as_dtype(kind)
    if gradient is None or (values := _values(gradient)).dtype == kind:
        return gradient
    if kind in PARTS:
        return _with_values(_with_shape(gradient, lambda shape: shape[:-1]), tf.bitcast(values, kind))
    return _with_values(gradient, tf.cast(values, kind))


def _scaled(gradient: Gradient, factor: float) -> Gradient:
    """Scale a gradient. It is zero where the factor is: a worker without samples computed on something else, perhaps
    nan.
    """
    values = _values(gradient)
    return _with_values(gradient, values * tf.cast(factor, values.dtype) if factor else tf.zeros_like(values))


def _weighed(gradients: list[Gradient], scale: Any) -> list[Gradient]:
    """Weigh gradients with a scale that is known only when the step runs, each gradient as soon as it is there.

    Dense ones are averaged then, and most steps are even: they are handed on as they are. Sparse ones are summed up. A
    branch becomes a switch for each of its tensors, which are handed on as they come, and not copied.
    """
    values, sparse = [_values(one) for one in gradients], [isinstance(one, tf.IndexedSlices) for one in gradients]
    with tf.device("/CPU:0"):  # a switch is thrown in the main memory
        factor, weight = tf.unstack(scale)
        as_they_are, nothing = tf.equal(weight if any(sparse) else factor, 1.0), tf.equal(weight, 0.0)
    scales = [weight if is_sparse else factor for is_sparse in sparse]
    found = tf.cond(as_they_are, lambda: values, lambda: _multiplied(values, scales, nothing))
    return [_with_values(*pair) for pair in zip(gradients, tf.nest.flatten(found), strict=True)]


def _multiplied(values: list[Any], scales: list[Any], nothing: Any) -> list[Any]:
    """Multiply values by their scales, or make them zeros where `nothing` holds. `multiply_no_nan`, which looks at
    element after element, takes three times as long.
    """
    return list(
        tf.nest.flatten(
            tf.cond(
                nothing,
                lambda: [tf.zeros_like(one) for one in values],
                lambda: [one * tf.cast(scale, one.dtype) for one, scale in zip(values, scales, strict=True)],
            )
        )
    )


def _values(gradient: Gradient) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _with_values(gradient: Gradient, values: Any) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def _behind_gate(gradients: list[Gradient], waited: list[Any]) -> list[Gradient]:
    """Return the gradients, none before all are there, and note what was `waited` for them."""
    with tf.control_dependencies([tf.group(*waited, *_all_tensors(gradients))]):
        return [tf.nest.map_structure(tf.identity, gradient, expand_composites=True) for gradient in gradients]


def _all_tensors(gradients: list[Gradient]) -> list[Any]:
    return [tensor for gradient in gradients for tensor in _tensors(gradient)]


def _tensors(gradient: Gradient) -> list[Any]:
    return list(tf.nest.flatten(gradient, expand_composites=True))


# `edl.tensorflow.GradientTape`: what it gives back is averaged over all workers already.


# A mark of what a traced step calls. Else AutoGraph rewrites edl's own functions in each worker, which takes seconds,
# though none of them branches on a tensor.
as_it_stands = tf.autograph.experimental.do_not_convert


class AveragingTape(tf.GradientTape):  # type: ignore[misc]
    """A `tf.GradientTape` whose `gradient()` gives those of the global batch."""

    def __init__(self, reducer: Reducer, persistent: bool, watch_accessed_variables: bool) -> None:
        super().__init__(persistent, watch_accessed_variables)
        self._edl = reducer

    @as_it_stands  # type: ignore[untyped-decorator]
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return gradients as `tf.GradientTape.gradient` does; those of variables are averaged over all workers.

        In a mini-batch that is void, or in which no worker has samples, it gives what was found here: no wrapped
        optimizer applies it.
        """
        found = super().gradient(target, sources, *args, **kwargs)
        averaged = average(self._edl, found, sources)
        return found if averaged is None else averaged


def average(reducer: Reducer, found: Any, sources: Any) -> Any:
    """Return `found`, of the structure of `sources`, with the gradients of variables averaged; those of other tensors
    are the worker's own. None: there is no update in this mini-batch.
    """
    flat = tf.nest.flatten(sources)
    gradients = _flat(found, len(flat))
    places = [place for place, source in enumerate(flat) if isinstance(source, (tf.Variable, keras.Variable))]
    if not places:
        return found
    averaged = reducer.average_of_tape([gradients[place] for place in places], [flat[place] for place in places])
    if averaged is None:
        return None
    for place, gradient in zip(places, averaged, strict=True):
        gradients[place] = gradient
    return tf.nest.pack_sequence_as(sources, gradients)


def _flat(found: Any, number: int) -> list[Any]:
    """Sparse gradients are one each, and so is none at all."""
    gradients = tf.nest.flatten(found)
    assert len(gradients) == number
    return list(gradients)
