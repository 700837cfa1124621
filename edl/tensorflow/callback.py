"""Keras's `fit` as an elastic training loop.

Owns: `edl.tensorflow.KerasCallback`. Does not own: averaging (`edl.tensorflow.keras_optimizer`), nor the end of a batch
(`edl.runtime.trainer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import keras

from edl.collectives.guard import plain
from edl.collectives.horovod import HorovodRing
from edl.errors import RingBroken
from edl.tensorflow.keras_optimizer import check_fit


class BatchPort(Protocol):
    """What `fit` needs of the trainer."""

    def begin_batch(self) -> None:
        """Before the forward pass."""

    def before_reduce(self) -> None:
        """Before the first collective of a step."""

    def void(self, error: BaseException) -> None:
        """A collective of this step failed."""

    def notify_batch_end(self, samples: int | None = None) -> bool:
        """After the update."""


class ElasticFit(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells edl of the end of each batch, and keeps `fit` going when a peer is lost in the middle of one."""

    def __init__(self, trainer: BatchPort, ring: HorovodRing) -> None:
        super().__init__()
        self._trainer = trainer
        self._ring = ring
        self._unguarded: Callable[[Any], Any]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        check_fit(self.model)
        self._unguarded = self.model.train_function
        self.model.train_function = self._guarded(self._unguarded)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        self.model.train_function = self._unguarded

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self._trainer.begin_batch()
        self._trainer.before_reduce()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self._trainer.notify_batch_end()

    def _guarded(self, train: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A failed all-reduce stops the traced step before any update; `fit` itself need not know."""

        def guarded(iterator: Any) -> Any:
            try:
                return train(iterator)
            except Exception as error:
                if not self._ring.is_failure(error):
                    raise
                self._trainer.void(RingBroken(f"the gradients were not averaged: {plain(str(error))}"))
                return self.model.get_metrics_result()

        return guarded
