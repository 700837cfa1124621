"""The updates of Keras's optimizers, as these count them: what runs inside of a graph tells Python nothing.

Owns: when the counts are looked at. Does not own: in which mini-batches updates are due (`edl.trainer.updates_due`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from edl.tensorflow.keras_optimizer import counts
from edl.trainer.updates_due import UpdatesDue


class CountedUpdates(UpdatesDue):
    """Looked at in each mini-batch. Counts on a GPU are left alone, as to read one waits for the whole step."""

    def __init__(self) -> None:
        super().__init__()
        self._optimizers: list[Any] = []
        self._seen: list[list[int]] = []

    def add(self, optimizer: Any) -> None:
        """Expect updates by a wrapped `optimizer` of Keras."""
        if tf.executing_eagerly() and "GPU" not in optimizer.iterations.value.device:
            self._optimizers.append(optimizer)
            self._seen.append(counts(optimizer))
            self.expect(len(self._seen) - 1)

    def missing(self, step: int) -> tuple[int, ...]:
        """Return what `UpdatesDue` does."""
        for number, optimizer in enumerate(self._optimizers):
            if (found := counts(optimizer)) != self._seen[number]:
                self._seen[number] = found
                self.note(number, step)
        return super().missing(step)

    def made_after(self, step: int) -> int:
        """Return what `UpdatesDue` does."""
        self.missing(step + 1)
        return super().made_after(step)

    def begin_ring(self, void: tuple[int, ...] = (), step: int = 0) -> None:
        """Do what `UpdatesDue` does; another worker's state may have come."""
        self._seen = [counts(optimizer) for optimizer in self._optimizers]
        super().begin_ring(void, step)

    def _set(self, optimizer: int, due: int) -> None:
        super()._set(optimizer, due)
        self.soonest = 0
