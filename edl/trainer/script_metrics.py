"""Metrics of a script: sums over a validation set, and rows of all workers' mini-batches.

Owns: `edl.evaluate` and `edl.gather_for_metrics`, for functions and values of any framework. Does not own: sharing the
work (`edl.trainer.shared_evaluation`), nor how values travel (`edl.trainer.measuring`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from typing import Any

from edl.core.worker.worker_machine import WorkerMachine
from edl.errors import RingBroken
from edl.trainer import measuring
from edl.trainer.data.source import positive, samples_of
from edl.trainer.framework_port import Framework
from edl.trainer.step_end import BatchEnds
from edl.trainer.virtual_steps import AFTER

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
        """Return sums over all samples, each of which one worker computes."""
        batch = positive("batch_size", batch_size, "the samples of one call of the function")
        work = measuring.Measuring(self._noted(function), samples_of(source), batch)
        found = self._ends.evaluate(work)
        self._begin_numbers(AFTER)
        return measuring.measured(found)

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
            return measuring.GatheredRows(measuring.array_of(values, "edl.gather_for_metrics()"))
        mine = measuring.arrays_in(values, "edl.gather_for_metrics()")
        if self._machine.void is not None or not self._machine.generation:
            return measuring.like(values, mine)
        rows = [one[:0] for one in mine] if self._own_samples() == 0 else mine
        try:
            return measuring.like(values, measuring.gathered(self._framework.ring, rows))
        except RingBroken as error:
            logger.debug("the values of this worker alone are gathered: %s", error)
            return measuring.like(values, rows)
