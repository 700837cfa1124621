"""Gradients and batch statistics of virtual workers in TensorFlow, added up so that the bits do not depend on who adds.

A tape has no place for gradients as PyTorch's parameters have: the script gives those of each part to
`edl.add_gradients`, eagerly, be they computed in a `tf.function` or not, and takes those of the step by
`edl.summed_gradients`. All numbers of a step travel in one tensor, as in `edl.torch.part_sums`.

Owns: what the script has given of a part, rounding and adding it up, and the operation of the ring. Does not own: the
scales (`edl.core.worker.fixed_point`), whether they suffice (`edl.trainer.part_notes`), the order of parts and their
seeds (`edl.trainer.virtual_steps`), nor the update (`edl.tensorflow.keras_optimizer`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.framework import config

from edl.collectives.horovod_ring import HorovodRing
from edl.core.worker.digest import fingerprint_of_array, of_all
from edl.core.worker.fixed_point import following, units
from edl.core.worker.rounding import add_rounded, mean_of
from edl.errors import UsageError
from edl.tensorflow.tf_reducer import Reducer, Voidable
from edl.tensorflow.tf_tensors import behind
from edl.trainer.framework_port import StepPort
from edl.trainer.part_notes import PartNotes, TimesGiven
from edl.trainer.recomputed_parts import UNCHECKED, StepTrial
from edl.trainer.virtual_steps import Scales

SUMMED: Final = (tf.float32, tf.float16, tf.bfloat16)
OUTSIDE: Final = (
    "edl.microbatches() inside of a tf.function: its parts are not the same in each step; loop over them outside, and "
    "call the function for each part"
)
NOTHING_GIVEN: Final = (
    "a part of edl.microbatches() has given no gradients: call edl.add_gradients(gradients, variables) for each part, "
    "and apply edl.summed_gradients(variables) after that loop"
)


class GivenGradients:
    """Gradients that the script has given since they were taken, added up by variable."""

    def __init__(self) -> None:
        self._sums: dict[int, Any] = {}
        self._step = 0

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], step: int) -> None:
        """Add what a tape has found, in mini-batch `step`. Raises UsageError."""
        if not tf.executing_eagerly():
            raise UsageError(
                "edl.add_gradients() inside of a tf.function: return the gradients, and give edl what it has returned"
            )
        if len(gradients) != len(variables):
            raise UsageError(
                f"edl.add_gradients(): {len(gradients)} gradients of {len(variables)} variables; give the list of a "
                "tape's gradient(loss, variables), and those variables"
            )
        if step != self._step:
            self._step, self._sums = step, {}
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None:
                key = id(behind(variable))
                before = self._sums.get(key)
                self._sums[key] = gradient if before is None else tf.convert_to_tensor(before) + gradient

    def take(self) -> dict[int, Any]:
        """Return the sums by the identity of variables, and begin anew."""
        taken, self._sums = self._sums, {}
        return taken


class Weight(NamedTuple):
    """A variable of the models that steps change."""

    name: str  # the same on all workers
    variable: Any
    is_statistic: bool  # forward passes change it


class _VariableLayout(NamedTuple):
    """The variables that are added up, one behind the other."""

    names: list[str]
    shapes: list[tuple[int, ...]]
    starts: list[int]  # and the length of all


class _MovedVariable(NamedTuple):
    """A variable as the step found it."""

    variable: Any
    start: NDArray[Any]

    def now(self) -> NDArray[Any] | None:
        """Return its contents, if they have changed."""
        now = np.asarray(self.variable.numpy())
        is_same = np.array_equal(now, self.start, equal_nan=np.issubdtype(self.start.dtype, np.inexact))
        return None if is_same else now


class TensorFlowPartSums:
    """`edl.trainer.virtual_steps.PartSums`."""

    def __init__(
        self,
        trainer: StepPort,
        ring: HorovodRing,
        reducers: Sequence[Reducer],
        weights: Callable[[], Iterable[Weight]],
        begin_with: Callable[[int], None],
        add_up: Callable[[NDArray[np.int32], str], NDArray[np.int32]],
    ) -> None:
        """`begin_with`: begins all random numbers by a seed. `add_up`: over the ring."""
        self._trainer, self._ring, self._reducers = trainer, ring, reducers
        self._weights, self._begin_with, self._add_up = weights, begin_with, add_up
        self._scales, self._virtual = Scales(), 1
        self._notes = PartNotes(self._scales, [], short=False)
        self._layout = _VariableLayout([], [], [0])
        self._total = np.zeros(0, np.int32)
        self._means: dict[int, NDArray[np.float32]] = {}  # of the newest step, by the identity of variables
        self._empty = True  # nothing was added yet
        self._parameters: dict[str, Any] = {}
        self._statistics: dict[str, _MovedVariable] = {}
        self._gpus = " ".join(sorted({_kind(one) for one in tf.config.list_physical_devices("GPU")})) or "none"
        self.given = GivenGradients()

    # -------------------------------------------------------------------------------------------------- the parts

    def begin(self, scales: Scales, virtual: int, trial: StepTrial = UNCHECKED) -> None:
        if not tf.executing_eagerly():
            raise UsageError(OUTSIDE)
        self._scales, self._virtual = scales, virtual
        found = list(self._weights())
        self._parameters = {one.name: one.variable for one in found if not one.is_statistic}
        kept = [(one, np.array(one.variable.numpy())) for one in found if one.is_statistic]
        self._statistics = {one.name: _MovedVariable(one.variable, start) for one, start in kept if _has_sum(start)}
        self.given.take()
        self._means = {}
        shapes = {name: tuple(one.shape) for name, one in self._parameters.items()}
        shapes |= {name: one.start.shape for name, one in self._statistics.items()}
        known = [name for name in shapes if name in scales.exponents]
        starts = [0]
        for name in known:
            starts.append(starts[-1] + int(np.prod(shapes[name], dtype=np.int64)))
        self._layout = _VariableLayout(known, [shapes[name] for name in known], starts)
        short = any(name not in scales.exponents for name in self._parameters)
        self._notes = PartNotes(scales, known, short=short, trial=trial)
        if len(self._total) != starts[-1] + self._notes.length:
            self._total = np.zeros(starts[-1] + self._notes.length, np.int32)
        self._empty = True

    def begin_part(self, seed: int) -> None:
        self._put_back()
        self.given.take()
        self._begin_with(seed)

    def seed(self, seed: int) -> None:
        self._begin_with(seed)

    def conditions(self) -> dict[str, str]:
        threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
        return {
            "tensorflow": str(tf.__version__),
            "number of threads": str(threads),
            "GPU": self._gpus,
            "setting of deterministic operations": str(config.is_op_determinism_enabled()),
        }

    def take(self, weight: float, *, digest: bool) -> int:
        given = dict(self._gradients())
        if not weight and not digest:
            return 0
        for name, one in self._statistics.items():
            if (now := one.now()) is not None:
                given[name] = now - one.start
        named = sorted(given.items())
        found = of_all([fingerprint_of_array(name, values) for name, values in named]) if digest else 0
        if not weight:
            return found
        largest: dict[str, float] = {}
        for number, name in enumerate(self._layout.names):
            target = self._total[self._layout.starts[number] : self._layout.starts[number + 1]]
            if name in given and not self._notes.short:
                largest[name] = self._add(name, target, given[name].reshape(-1), weight)
            elif self._empty:
                target.fill(0)
        self._empty = False
        for name, values in given.items():
            if values.size:
                most = largest[name] if name in largest else _largest(values)
                self._notes.note(name, most * weight, is_whole=_is_whole(values))
        return found

    def _gradients(self) -> Iterator[tuple[str, NDArray[Any]]]:
        taken = self.given.take()
        if not taken:
            raise UsageError(NOTHING_GIVEN)
        names = {id(behind(one)): name for name, one in self._parameters.items()}
        for key, gradient in taken.items():
            name = names.get(key)
            if name is None:
                raise UsageError(
                    "edl.add_gradients(): a variable is not one of those that the wrapped models train: give its model "
                    "to edl.Optimizer(optimizer, model=model), or start the job without --virtual-workers"
                )
            if isinstance(gradient, tf.IndexedSlices) or gradient.dtype not in SUMMED:
                kind = "sparse" if isinstance(gradient, tf.IndexedSlices) else gradient.dtype.name
                raise UsageError(
                    f"{self._parameters[name].name} has a {kind} gradient, which virtual workers cannot add up: make "
                    "it dense by tf.convert_to_tensor, and of float32, float16 or bfloat16, or start the job without "
                    "--virtual-workers"
                )
            yield name, np.asarray(gradient.numpy(), np.float32)

    def _add(self, name: str, target: NDArray[np.int32], source: NDArray[Any], weight: float) -> float:
        """Add a tensor; return its largest element."""
        if _is_whole(source):
            target[:] = source if self._empty else target + source
            return _largest(source)
        factor = weight * units(self._scales.exponents[name], self._virtual)
        return add_rounded(np.ascontiguousarray(source, np.float32), target, factor, self._empty)

    # ----------------------------------------------------------------------------------------------------- the sum

    def reduce(self, computed: int) -> bool:
        self._put_back()
        self._trainer.before_reduce()
        with Voidable(self._trainer, self._ring), self._ring.failing():
            if not self._trainer.voided and not self._are_summed(computed):
                return True
        for reducer in self._reducers:
            reducer.note_summed()
        return False

    def _are_summed(self, computed: int) -> bool:
        """Add up what all workers have. False: their scales did not suffice, and are others now."""
        if self._empty:
            self._total.fill(0)
        if any(name not in self._scales.exponents for name in self._parameters):  # on all workers alike
            self._agree()
            return False
        self._total[self._layout.starts[-1] :] = self._notes.told()
        total = self._total if self._ring.size <= 1 else np.ascontiguousarray(self._sum())
        given = self._notes.hear(total[self._layout.starts[-1] :].tolist())
        if given is None:
            self._agree()
            return False
        if self._notes.again:
            return False
        self._take_over(total, given, computed)
        return True

    def _sum(self) -> NDArray[np.int32]:
        began, self._ring.reduces = time.perf_counter_ns(), True
        try:
            return self._add_up(self._total, "edl_parts")
        finally:
            self._ring.reduces = False
            self._trainer.waited(time.perf_counter_ns() - began)

    def _agree(self) -> None:
        largest = self._ring.largest if self._ring.size > 1 else list
        self._notes.agree(list(self._parameters), list(self._statistics), largest)

    def _take_over(self, total: NDArray[np.int32], found: Sequence[TimesGiven], computed: int) -> None:
        """Make gradients and statistics of the sums, and the scales of the coming step."""
        layout, exponents = self._layout, self._scales.exponents
        for number, (start, end) in enumerate(pairwise(layout.starts)):
            name, sums, given = layout.names[number], total[start:end], found[number]
            if not given.times:
                continue
            statistic = self._statistics.get(name)
            if statistic is not None and _is_whole(statistic.start):
                moved = (sums // computed).reshape(layout.shapes[number])
                statistic.variable.assign(statistic.start + moved.astype(statistic.start.dtype))
                continue
            mean = np.empty(end - start, np.float32)
            largest = mean_of(sums, mean, 1.0 / (units(exponents[name], self._virtual) * self._virtual))
            if given.filling is not None:
                mean.fill(given.filling)
            elif len(mean):
                exponents[name] = following(largest, exponents[name], self._virtual)
            mean = mean.reshape(layout.shapes[number])
            if statistic is None:
                self._means[id(behind(self._parameters[name]))] = mean
            else:
                statistic.variable.assign(statistic.start + mean.astype(statistic.start.dtype))

    def summed(self, variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of the step, as a tape's; zeros where it is void."""
        if self._trainer.voided:
            return [tf.zeros(one.shape, one.dtype) for one in variables]
        means = [(self._means.get(id(behind(one))), one.dtype) for one in variables]
        return [None if mean is None else tf.cast(tf.convert_to_tensor(mean), kind) for mean, kind in means]

    def _put_back(self) -> None:
        """Put back the statistics that forward passes have moved."""
        for one in self._statistics.values():
            if one.now() is not None:
                one.variable.assign(one.start)


def _has_sum(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "fiu" or values.dtype == tf.bfloat16.as_numpy_dtype


def _is_whole(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iu"


def _largest(values: NDArray[Any]) -> float:
    """Return the largest absolute value; nan if there is any."""
    low = float(values.min())
    return low if math.isnan(low) else max(-low, float(values.max()))


def _kind(device: Any) -> str:
    return str(tf.config.experimental.get_device_details(device).get("device_name", device.name))
