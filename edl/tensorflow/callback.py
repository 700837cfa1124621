"""Keras's `fit` as an elastic training loop.

Owns: `edl.tensorflow.KerasCallback`. Does not own: averaging (`edl.tensorflow.keras_optimizer`), nor the end of a batch
(`edl.trainer.trainer`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import keras
import tensorflow as tf

from edl.collectives.horovod import HorovodRing
from edl.tensorflow.keras_optimizer import check_fit
from edl.tensorflow.metrics import over_all_workers
from edl.tensorflow.voidable import Voidable
from edl.trainer.data.shards import Held
from edl.trainer.framework import StepPort


class BatchPort(StepPort, Protocol):
    """What `fit` needs of the trainer."""

    def begin_batch(self) -> None:
        """Before the forward pass."""

    def notify_batch_end(self, samples: int | None = None) -> bool:
        """After the update."""

    def hold(self) -> Held:
        """The caller keeps the item that is being trained, and gives it out again when told to."""

    def rehearsing(self) -> bool:
        """This mini-batch is a newcomer's throw-away one."""

    @property
    def ends_pass(self) -> bool:
        """This mini-batch is the last one of its epoch, on all workers alike."""

    @property
    def epochs_done(self) -> int | None:
        """Passes of the job over its data that have come to their end here; None when edl does not deal it out."""


class PassesWanted:
    """How many passes over the data all calls of `fit` so far want together.

    A newcomer calls `fit(epochs=10)` too, when the others have done 7 of them: it is done when the job is.
    """

    def __init__(self) -> None:
        self.total = 0


class ElasticFit(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells edl of the end of each batch, and keeps `fit` going when a peer is lost in the middle of one."""

    def __init__(self, trainer: BatchPort, ring: HorovodRing, wanted: PassesWanted) -> None:
        super().__init__()
        self._trainer = trainer
        self._ring = ring
        self._wanted = wanted
        self._unguarded: Callable[[Any], Any]
        self._held: Held
        self._item: Any = None  # what `fit` is at
        self._begun = False  # the first epoch of this `fit`
        self._batches: Any = None  # Keras's, when an epoch is as long as the data lasts
        self._of_all: dict[str, Any] = {}  # this epoch's metrics, over all workers

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        check_fit(self.model)
        self._unguarded = self.model.train_function
        self._held = self._trainer.hold()
        self.model.train_function = self._guarded(self._unguarded)
        self._begun = False
        self._batches = _batches_of_fit(sys._getframe()) if self.params.get("steps") is None else None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self._of_all = {}
        if self._batches is None:
            return
        # Keras takes the length of its first epoch for that of all. Ours differ: a newcomer's first is only the rest of
        # one, and fewer workers have more batches each.
        self._batches._num_batches = None
        if not self._begun:
            self._begun = True
            self._wanted.total += self.params["epochs"] - epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        if logs is not None:
            logs.update(self._of_all)
        done = self._trainer.epochs_done
        if self._batches is not None and done is not None and done >= self._wanted.total:
            self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        self.model.train_function = self._unguarded
        self._batches = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self._end_batch()

    def _end_batch(self) -> None:
        rehearsed = self._trainer.rehearsing()
        if self._trainer.ends_pass and not rehearsed and not self._trainer.voided:
            self._of_all = over_all_workers(self.model, self._ring) or {}
        self._trainer.notify_batch_end()
        if rehearsed:
            self.model.reset_metrics()  # they are not sent to a newcomer, so what it threw away would stay in them

    def _guarded(self, train: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A failed all-reduce stops the traced step before any update; `fit` itself need not know.

        Its pipeline reads ahead. So the item that is being trained is fetched here, outside of what is traced, to be
        there if it must come again.
        """
        step: Callable[[Any], Any] | None = None

        def guarded(iterator: Any) -> Any:
            nonlocal step
            self._fetch(iterator)
            while self._trainer.weightless:  # Keras, and callbacks that count batches, never hear of it (I13)
                self._end_batch()
                self._fetch(iterator)
            if step is None:
                step = self._traced(train, iterator.element_spec)
            with Voidable(self._trainer, self._ring):
                return step(self._item)
            return self.model.get_metrics_result()

        return guarded

    def _fetch(self, iterator: Any) -> None:
        """The next item, or the same one again, and what its step needs."""
        if not self._held.again:
            self._item = next(iterator)  # before anything waits for its weight: there may be none in this pass
            while self._held.passes_over():
                self._item = next(iterator)
        self._held.again = False
        self._trainer.begin_batch()
        self._trainer.before_reduce()

    def _traced(self, train: Callable[[Any], Any], spec: Any) -> Callable[[Any], Any]:
        """One step of Keras's on one item; traced once for all lengths of a batch, as it is by Keras itself."""

        def step(item: Any) -> Any:
            return train([item])

        return step if self.model.run_eagerly else tf.function(step, input_signature=[spec], autograph=False)


def _batches_of_fit(frame: FrameType | None) -> Any:
    """The iterator over epochs of the `fit` that calls us, which Keras does not show. None: we are in no `fit`."""
    while frame is not None:
        batches = frame.f_locals.get("epoch_iterator")
        if hasattr(batches, "_num_batches"):
            return batches
        frame = frame.f_back
    return None
