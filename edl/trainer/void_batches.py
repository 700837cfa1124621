"""Mini-batches that do not count: without an update that the others make, and what one would leave behind is undone.

A script that catches an exception before the end of `backward()` goes on to its next mini-batch on one worker alone.
Rings do not number what they average: its next gradients would meet the others' of the mini-batch that it has left.

Owns: the question whether all workers have left an update out, how long a worker waits for the answer, and what is kept
to undo a step. Does not own: when an update is due (`edl.trainer.updates_due`), nor what follows of a void mini-batch
(`edl.trainer.step_end`).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from typing import Final

from edl.core.worker.worker_machine import WorkerMachine
from edl.errors import RingBroken, UsageError
from edl.trainer.framework_port import Framework
from edl.trainer.registered_state import RegisteredState

SHORT_WAIT_S: Final = 2.0
CUT: Final = "an exception has ended backward() here, and the script has caught it"
SKIPPED: Final = "the script has ended it without an update, which others make, as where it catches an exception"


class UpdateCheck:
    """Check the end of mini-batches for one trainer. Belongs to the training thread."""

    def __init__(self, framework: Framework, machine: WorkerMachine) -> None:
        self._framework = framework
        self._machine = machine
        self._generation = 0  # of the ring
        self._voided = 0  # the newest mini-batch that was void as it had no update here,
        self._left_out: tuple[int, ...] = ()  # by these optimizers
        self._skips = False  # all workers have ended one without an update

    def begin_step(self) -> None:
        machine = self._machine
        if machine.generation != self._generation:
            self._generation = machine.generation
            void = self._left_out if machine.step + 1 == self._voided else ()
            self._framework.updates_due.begin_ring(void, self._voided)

    @property
    def is_missing(self) -> bool:
        """Tell whether an update was due in the mini-batch that ends, or an exception has ended its backward(), and the
        mini-batch counts so far.
        """
        machine, due = self._machine, self._framework.updates_due
        if machine.void is not None or not machine.generation:
            return False
        return due.in_backward or bool(due.missing(machine.step + 1))

    def ask(self, step_timeout_s: float) -> RingBroken | None:
        """Ask the others whether they left out the missing update, too. If not, return why the mini-batch is void.

        Raises UsageError the second time.
        """
        machine, due = self._machine, self._framework.updates_due
        step = machine.step + 1
        missing = due.missing(step)
        if machine.size == 1 or (not due.in_backward and self._all_skip(step, missing, step_timeout_s)):
            self._skips = self._skips or machine.size > 1
            due.in_backward = False
            due.skip(step)
            return None
        self._framework.ring.abort(range(machine.generation, machine.generation + 1))
        if self._voided == step:
            raise UsageError(
                f"step {step} is void again: {SKIPPED}. Skip a mini-batch on all workers or on none: let the exception "
                "end this worker, whose samples the others train then, or go on to backward() with a loss times zero"
            )
        self._voided, self._left_out = step, missing
        return RingBroken(SKIPPED)

    def _all_skip(self, step: int, missing: tuple[int, ...], step_timeout_s: float) -> bool:
        # The others answer once they end the mini-batch without an update, too. If they wait for gradients, they never
        # do: the ring is cut.
        ring, generation = self._framework.ring, self._machine.generation
        patience_s = step_timeout_s / 4
        if not self._skips and step != self._voided:
            patience_s = min(SHORT_WAIT_S, patience_s)
        cut = threading.Timer(patience_s, ring.abort, [range(generation, generation + 1)])
        cut.daemon = True
        cut.start()
        try:
            if ring.same(zlib.crc32(repr((step, missing)).encode()))():
                return True
        except RingBroken:
            return False
        finally:
            cut.cancel()
        return False


# Undoing what a mini-batch that does not count would leave behind, at its end (I8, I13).
#
# A worker without samples of its own computes on some that others train, the first of the epoch again and again.
# Its gradients weigh nothing; what its forward passes update by themselves (batch norm) would, once a switch makes it
# that of all. Where no worker has any, or the gradients could not be averaged, the script's own schedule must not go on
# either, nor what else is registered.


class StepUndo:
    """Remember state for one mini-batch at a time."""

    def __init__(self, framework: Framework, extras: RegisteredState) -> None:
        self._framework = framework
        self._extras = extras
        self._statistics = False
        self.merges = False  # statistics are those of all workers' samples: what stand-ins made of them is gone by then
        self._put_extras_back: Callable[[], None] | None = None

    def keep_statistics(self, *, of_nobody: bool) -> None:
        """Remember statistics before forward passes of stand-ins. `of_nobody`: no worker has samples."""
        if not self._statistics and (of_nobody or not self.merges):
            self._statistics = True
            self._framework.keep(only_statistics=not of_nobody)

    def keep_registered(self) -> None:
        """Remember registered values, if no worker has samples or the mini-batch is void, before gradients are used.

        Not earlier than the script has come to its gradients: what it does between two mini-batches, at the end of an
        epoch say, is no part of either.
        """
        if self._put_extras_back is None:
            self._framework.keep_hyper_parameters()
            self._put_extras_back = self._extras.remember(self._framework)

    def drop(self) -> None:
        # A pipeline's thread had asked for the samples of a mini-batch, and the others went past it: it never came.
        if self._statistics or self._put_extras_back is not None:
            self._statistics, self._put_extras_back = False, None
            self._framework.drop_kept()

    def put_back(self) -> None:
        """End the mini-batch: the forward pass of one of stand-ins leaves nothing behind, nor does what the script did
        after its gradients in a void one.
        """
        put_extras_back, self._put_extras_back = self._put_extras_back, None
        if self._statistics or put_extras_back is not None:
            self._statistics = False
            self._framework.put_back()
        if put_extras_back is not None:
            put_extras_back()
