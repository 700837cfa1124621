"""The updates of Keras's optimizers, as these count them: what runs inside of a graph tells Python nothing.

Owns: when the counts are looked at. Does not own: in which mini-batches updates are due (`edl.trainer.updates_due`).
"""

from __future__ import annotations

import ctypes
from typing import Any

import keras
import tensorflow as tf

from edl.core.worker.next_move import NEVER
from edl.tensorflow.keras_optimizer import counts
from edl.tensorflow.kernels import kernels_for
from edl.trainer.updates_due import UpdatesDue


class CountedUpdates(UpdatesDue):
    """Looked at in each mini-batch. Counts on a GPU are left alone, as to read one waits for the whole step."""

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
        """Return what `UpdatesDue` does."""
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
        """Return what `UpdatesDue` does."""
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
