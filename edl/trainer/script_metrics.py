"""Metrics of a script: sums over a validation set, and rows of all workers' mini-batches.

Owns: `edl.evaluate` and `edl.gather_for_metrics`, for functions and values of any framework. Does not own: sharing the
work (`edl.trainer.shared_evaluation`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.collectives.ring_port import Ring, of_all_members
from edl.core.worker.worker_machine import WorkerMachine
from edl.errors import RingBroken, UsageError
from edl.trainer.data.source import positive, samples_of
from edl.trainer.framework_port import Framework
from edl.trainer.step_end import BatchEnds
from edl.trainer.value_tree import dtype_of, dtype_text
from edl.trainer.virtual_steps import AFTER

# Numbers are added exactly (`math.fsum`), so their sum does not depend on which worker has computed what.


Number = int | float
AnyArray = NDArray[Any]


class Packed(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    raw: bytes


class UnitFound(msgspec.Struct, frozen=True, array_like=True):
    """Results of the script's function for one unit."""

    unit: int
    numbers: dict[str, Number]
    sums: dict[str, Packed]
    rows: dict[str, Packed]


class GatheredRows(NamedTuple):
    """Argument of `edl.gather_for_metrics` inside an evaluation: a row for each sample."""

    array: AnyArray


class Measuring:
    """Evaluate a function of the script's on the numbers of some samples."""

    def __init__(self, function: Callable[[Any], Any], samples: int, batch: int) -> None:
        self._function = function
        self._samples = samples
        self._batch = batch
        self._found: list[UnitFound] = []

    @property
    def units(self) -> int:
        return -(-self._samples // self._batch)

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:
        for count, unit in enumerate(units, 1):
            ids = np.arange(unit * self._batch, min((unit + 1) * self._batch, self._samples))
            self._found.append(_unit_found(unit, self._function(ids), len(ids)))
            if not goes_on():
                return units[:count]
        return units

    def found(self) -> bytes:
        return msgspec.msgpack.encode(self._found)


def measured(found: Sequence[bytes]) -> dict[str, Any]:
    """Combine the results of all workers in the order of the samples, whichever worker computed which."""
    units = [unit for one in found for unit in msgspec.msgpack.decode(one, type=list[UnitFound])]
    units.sort(key=lambda unit: unit.unit)
    result: dict[str, Any] = {}
    for name in _names(units):
        if name in units[0].numbers:
            result[name] = _total([unit.numbers[name] for unit in units])
        elif name in units[0].sums:
            result[name] = np.sum([unpacked(unit.sums[name]) for unit in units], axis=0)
        else:
            result[name] = np.concatenate([unpacked(unit.rows[name]) for unit in units])
    return result


def gathered(ring: Ring, rows: Sequence[AnyArray]) -> list[AnyArray]:
    """Return the rows of all members of the ring, one after another. Raises RingBroken."""
    said = of_all_members(ring, msgspec.msgpack.encode([packed(one) for one in rows]))
    members = [[unpacked(one) for one in msgspec.msgpack.decode(mine, type=list[Packed])] for mine in said]
    return [np.concatenate(theirs) for theirs in zip(*members, strict=True)]


def array_of(value: Any, where: str) -> AnyArray:
    """Convert a tensor of any framework, an array, or a number. Raises UsageError for anything else."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.dtype.is_floating_point and value.dtype.itemsize == 2:  # numpy knows only one of the two
            value = value.float()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: a {type(value).__name__} is no array: {error}") from error
    if array.dtype.kind not in "biufc":
        raise UsageError(f"{where}: a {type(value).__name__} is neither a number, an array nor a tensor of numbers")
    return array


def packed(array: AnyArray) -> Packed:
    return Packed(dtype_text(array.dtype), array.shape, np.ascontiguousarray(array).tobytes())


def unpacked(one: Packed) -> AnyArray:
    return np.frombuffer(one.raw, dtype_of(one.dtype)).reshape(one.shape).copy()


def arrays_in(values: Any, where: str) -> list[AnyArray]:
    """Return all arrays in nested tuples, lists and dicts, each with a row per sample."""
    if isinstance(values, Mapping):
        return [array for name, one in values.items() for array in arrays_in(one, f"{where}[{name!r}]")]
    if isinstance(values, (tuple, list)) and any(_is_nested(one) for one in values):
        return [array for place, one in enumerate(values) for array in arrays_in(one, f"{where}[{place}]")]
    return [np.atleast_1d(array_of(values, where))]


def like(values: Any, arrays: list[AnyArray]) -> Any:
    """Return the same nesting with `arrays` in it, which are used up."""
    if isinstance(values, Mapping):
        return {name: like(one, arrays) for name, one in values.items()}
    if isinstance(values, (tuple, list)) and any(_is_nested(one) for one in values):
        return type(values)([like(one, arrays) for one in values])
    return arrays.pop(0)


def _is_nested(one: Any) -> bool:
    return isinstance(one, (Mapping, tuple, list)) or hasattr(one, "shape")


def _unit_found(unit: int, given: Any, samples: int) -> UnitFound:
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) for name in given):
        raise UsageError(
            f"edl.evaluate(function, ...): the function gave a {type(given).__name__}; it must return a dict of names "
            "to sums over the samples that it was given, such as {'right': 27, 'loss': 13.5}"
        )
    found = UnitFound(unit, {}, {}, {})
    for name, value in given.items():
        where = f"edl.evaluate(function, ...), {name!r}"
        if isinstance(value, GatheredRows):
            if len(value.array) != samples:
                raise UsageError(f"{where}: {len(value.array)} rows were given to be gathered, of {samples} samples")
            found.rows[name] = packed(value.array)
            continue
        array = array_of(value, where)
        if array.ndim:
            found.sums[name] = packed(array)
        else:
            found.numbers[name] = int(array) if array.dtype.kind in "biu" else float(array)
    return found


def _names(units: Sequence[UnitFound]) -> list[str]:
    names = [[*unit.numbers, *unit.sums, *unit.rows] for unit in units]
    for unit, others in zip(units, names, strict=True):
        if set(others) != set(names[0]):
            raise UsageError(
                f"edl.evaluate(function, ...): the function gave {sorted(names[0])} for its first samples and "
                f"{sorted(others)} for those of batch {unit.unit}; it must give the same names each time"
            )
    return names[0]


def _total(numbers: Sequence[Number]) -> Number:
    if all(isinstance(one, int) for one in numbers):
        return sum(numbers)
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # there are infinities among them
        return float(sum(numbers))


logger = logging.getLogger("edl")

Function = Callable[[Any], Any]


class ScriptMetrics:
    """Metrics of one trainer, on the training thread."""

    def __init__(
        self,
        framework: Framework,
        machine: WorkerMachine,
        ends: BatchEnds,
        own_samples: Callable[[], int | None],
        begin_numbers: Callable[[int], None],
    ) -> None:
        """`own_samples`: of this worker in the mini-batch being worked on; None if its data are the script's own.
        `begin_numbers`: begins random numbers for the batch of an evaluation with that first sample, or after all.
        """
        self._framework = framework
        self._machine = machine
        self._ends = ends
        self._own_samples = own_samples
        self._begin_numbers = begin_numbers
        self._computes = False  # the script's function is called

    def evaluate(self, function: Function, source: int | Sized, batch_size: int) -> dict[str, Any]:
        batch = positive("batch_size", batch_size, "the samples of one call of the function")
        work = Measuring(self._noted(function), samples_of(source), batch)
        found = self._ends.evaluate(work)
        self._begin_numbers(AFTER)
        return measured(found)

    def _noted(self, function: Function) -> Function:
        def computing(ids: Any) -> Any:
            self._computes = True
            self._begin_numbers(int(ids[0]))
            try:
                return function(ids)
            finally:
                self._computes = False

        return computing

    def gather(self, values: Any) -> Any:
        """Return the rows of all workers' mini-batches; in the function of `evaluate`, what that returns for them."""
        if self._computes:
            return GatheredRows(array_of(values, "edl.gather_for_metrics()"))
        mine = arrays_in(values, "edl.gather_for_metrics()")
        if self._machine.void is not None or not self._machine.generation:
            return like(values, mine)
        rows = [one[:0] for one in mine] if self._own_samples() == 0 else mine
        try:
            return like(values, gathered(self._framework.ring, rows))
        except RingBroken as error:
            logger.debug("the values of this worker alone are gathered: %s", error)
            return like(values, rows)
