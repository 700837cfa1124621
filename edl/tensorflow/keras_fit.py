"""Keras's `fit` as an elastic training loop.

Owns: `edl.tensorflow.KerasCallback`. Does not own: averaging (`edl.tensorflow.keras_optimizer`), nor the end of a batch
(`edl.trainer.trainer`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

import keras
import tensorflow as tf

from edl.collectives.horovod_ring import HorovodRing
from edl.collectives.ring_port import of_all_members
from edl.errors import RingBroken, UsageError
from edl.tensorflow.fit_position import NO_FIT, FitStanding, begin_of, count_on, counts_of, fit_of, is_stream
from edl.tensorflow.keras_optimizer import check_fit
from edl.tensorflow.keras_validation import (
    EpochCounted,
    Numbers,
    SharedValidation,
    build,
    count,
    counted,
    epoch_total,
    total,
)
from edl.tensorflow.rank0_callbacks import Writers, check_callbacks
from edl.tensorflow.tf_reducer import Voidable
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.shards import CurrentItem, ShardGenerator
from edl.trainer.framework_port import StepPort
from edl.trainer.script_position import ScriptStanding
from edl.trainer.shared_evaluation import Work


class BatchPort(StepPort, Protocol):
    """The part of the trainer that `fit` uses."""

    def begin_batch(self) -> None:
        """Begin a mini-batch, before its forward pass."""

    def hold(self) -> CurrentItem:
        """Let the caller keep the item that is being trained, and give it out again when told to."""

    def rehearsing(self) -> bool:
        """Tell whether this mini-batch is a newcomer's throw-away one."""

    @property
    def rehearsals(self) -> Rehearsals:
        """Tell how many throw-away mini-batches there are to be, and how many are over."""

    def own_samples(self) -> int:
        """Count this worker's samples in the mini-batch being worked on; 0: it has stand-ins."""

    def evaluate_shared(self, work: Work) -> tuple[bytes, ...]:
        """Share out the work and return what each worker has found, each unit once."""

    @property
    def ends_pass(self) -> bool:
        """Tell whether this mini-batch is the last one of its epoch, on all workers alike."""

    @property
    def given_up(self) -> bool:
        """Tell whether the ring is given up, as the next one waits for this worker."""

    @property
    def shards(self) -> ShardGenerator[Any] | None:
        """Return the script's shard generator, where edl deals out its data."""

    @property
    def standing(self) -> ScriptStanding:
        """Return the script's place, for workers that go on from there."""


OVERRIDES: Final = ("_get_metrics_result_or_logs", "evaluate")  # of the model, while `fit` runs


class Fits:
    """Count the calls of `fit` that this process has begun, as a newcomer's first one may be over in the job; note
    whether they wrote files.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.wrote = False  # files of callbacks, in any of them


class ElasticFit(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells edl of the end of each batch, makes a pass over edl's data an epoch of `fit`, and keeps `fit` going when a
    peer is lost in the middle of either.
    """

    def __init__(
        self,
        trainer: BatchPort,
        ring: HorovodRing,
        fits: Fits,
        end: Callable[[], object],
        wrap: Callable[[Any], None] | None = None,
    ) -> None:
        """`end`: of a mini-batch, after the update. `wrap`: for optimizers of a model that are not wrapped yet."""
        super().__init__()
        self._trainer = trainer
        self._ring = ring
        self._fits = fits
        self._end = end
        self._wrap = wrap
        self._unguarded: Callable[[Any], Any]
        self._held: CurrentItem
        self._item: Any = None  # what `fit` is at
        self._fit = NO_FIT
        self._shared = False  # edl deals out the data: all workers come to the ends of epochs alike
        self._stands: FitStanding | None = None  # where each epoch is a pass over them
        self._entered = True  # the first epoch has begun
        self._begun_with: tuple[int, bytes] | None = None  # the step, and what all had counted by the end of its epoch
        self._writers: Writers | None = None
        self._before_stand_ins: Numbers | None = None  # what the metrics had counted

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        if self._trainer.virtual:
            raise UsageError(
                "fit() computes a step at once, and not the parts of virtual workers: write the loop over "
                "edl.microbatches(batch), or start the job without --virtual-workers"
            )
        if self._wrap is not None:
            self._wrap(self.model)
        check_fit(self.model)
        self._fit = fit_of(sys._getframe())
        check_callbacks(self._fit.callbacks, self)
        self._unguarded = self.model.train_function
        self._held = self._trainer.hold()
        self.model.train_function = self._guarded(self._unguarded)
        self._fits.begun += 1
        self._stands, self._entered = None, True
        self._writers = Writers(self._fit.callbacks, self._is_first)
        self._heed_rank()
        if self._lasts:
            self._fit.batches._interrupted_warning = lambda: None  # said at the end of each epoch of no known length
            if self._trainer.shards is not None:
                self._share(self._trainer.shards)
        self._writers.begin(wrote=self._fits.wrote)
        self._heed_rank()

    def _is_first(self) -> bool:
        """Tell whether this worker is the first. A newcomer is not while it rehearses, whatever its rank in the ring of
        one is.
        """
        return self._trainer.rank() == 0 and not self._trainer.rehearsing()

    def _heed_rank(self) -> None:
        if self._writers is not None and self._writers.heed_rank():
            self._fits.wrote = True

    @property
    def _lasts(self) -> bool:
        """Tell whether an epoch is as long as the data lasts."""
        return self._fit.batches is not None and self.params.get("steps") is None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        if self._lasts:
            # Keras takes the length of its first epoch for that of all. Ours differ: a newcomer's first is only the
            # rest of one, and fewer workers have more batches each.
            self._fit.batches._num_batches = None
        if self._stands is None or self._trainer.shards is None:
            return
        if not self._entered:
            self._entered = True
            count_on(self._fit.callbacks, self._stands.callbacks)
        stands = FitStanding(self._stands.number, epoch, self._stands.base, counts_of(self._fit.callbacks))
        if epoch != self._stands.epoch:
            self._begun_with = None
        self._stands = stands
        self._trainer.standing.fit = stands.told()
        self._trainer.shards.expect(stands.base + epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        self.model.train_function = self._unguarded
        self.model._initial_epoch = None
        for name in OVERRIDES:
            self.model.__dict__.pop(name, None)
        if self._writers is not None:
            self._writers.end()
        self._fit, self._shared, self._stands, self._writers = NO_FIT, False, None, None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self._end_batch()

    # ---------------------------------------------------------------------------------------- into the job's epoch

    def _share(self, shards: ShardGenerator[Any]) -> None:
        """Train on edl's data with all workers: they come to the end of each epoch after the same step."""
        self._shared = True
        # Past Keras's own __setattr__, which looks for what makes up the model.
        self.model.__dict__.update(_get_metrics_result_or_logs=self._logs_of_epoch, evaluate=self._evaluate)
        if not is_stream(shards, self.params["epochs"]):
            shards.by_epochs()
            self._enter(shards)

    def _enter(self, shards: ShardGenerator[Any]) -> None:
        """Find where the job stands, before Keras begins its first epoch: a newcomer rehearses, and a job that goes on
        takes over what was saved.
        """
        self._trainer.begin_batch()
        over = not self._rehearse(shards)
        heard = FitStanding.heard(self._trainer.standing.fit)
        stands = begin_of(self._fits.begun, self._fit.initial_epoch, shards.epochs_done, heard)
        if over or stands is None:
            self.model._initial_epoch = self.params["epochs"]  # none of its epochs is left
            return
        self._stands, self._entered = stands, False
        if stands.counted_with and stands.counted_with == self._trainer.standing.heard.get("step"):
            self._begun_with = self._trainer.committed, stands.counted
        self.model._initial_epoch = stands.epoch or None

    def _rehearse(self, shards: ShardGenerator[Any]) -> bool:
        """Rehearse where this worker is a newcomer. False: the job has nothing left to train."""
        if not self._trainer.rehearsing():
            return True
        iterator = iter(self._fit.batches._distributed_dataset)
        try:
            self.model.train_function(iterator)
            while self._trainer.rehearsals.left > 1:
                self._end_batch()
                self.model.train_function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            return False
        # Its pipeline waits for the next samples, and who takes it down waits for it: so it is told before.
        shards.leave()
        del iterator
        self._end_batch()
        return True

    # ------------------------------------------------------------------------------------------ the end of an epoch

    def _end_epoch(self) -> None:
        """Make this worker's metrics those of all workers, which come here after the same step."""
        numbers = epoch_total(self._trainer.evaluate_shared(EpochCounted(self.model, self._counted_by_all())))
        self._built_as(numbers)
        count(self.model, numbers)

    def _built_as(self, numbers: Numbers) -> None:
        if counted(self.model).size < numbers.size:
            build(self.model, self._fit.batches._distributed_dataset.element_spec)

    def _counted_by_all(self) -> bytes:
        """Return what all workers have counted in this epoch, where that is known: a job that goes on after the epoch's
        last step has no other memory of it.
        """
        step = self._trainer.committed
        if self._begun_with is not None and self._begun_with[0] == step:
            return self._begun_with[1]
        heard, stands = self._trainer.standing.heard, FitStanding.heard(self._trainer.standing.fit)
        if stands is None or not stands.counted_with == heard.get("step") == step:
            return b""
        return stands.counted

    def _tell_counted(self, stands: FitStanding) -> None:
        """Tell what all workers have counted, with an epoch's last step and before it is committed: a worker that goes
        on after that step gets the counts with the model.
        """
        try:
            numbers = total(of_all_members(self._ring, counted(self.model).tobytes()))
        except RingBroken:
            return  # those who come to the end of the epoch tell what they have
        stands = replace(stands, counted=numbers.tobytes(), counted_with=self._trainer.step())
        self._trainer.standing.fit = stands.told()

    def _logs_of_epoch(self, logs: Any) -> Any:
        """Return what Keras would take for the epoch's logs. A worker that came in with the epoch's last step has made
        no batch in it: its metrics give them.
        """
        if not counted(self.model).size:
            return {}
        given = type(self.model)._get_metrics_result_or_logs(self.model, logs)
        return given or self.model.get_metrics_result()

    def _evaluate(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluate in the place of Keras's method: the validation of `fit` is shared out; what a callback evaluates is
        its own.
        """
        if not keywords.get("_use_cached_eval_dataset"):
            return type(self.model).evaluate(self.model, *arguments, **keywords)
        callbacks = keywords["callbacks"]
        self.model._eval_epoch_iterator.reset()
        self.model.make_test_function()
        self.model.reset_metrics()
        callbacks.on_test_begin()
        validation = SharedValidation(self.model, callbacks, lambda: self._trainer.given_up)
        numbers = total(self._trainer.evaluate_shared(validation))
        self._built_as(numbers)
        count(self.model, numbers)
        logs = {name: float(value) for name, value in self.model.get_metrics_result().items()}
        callbacks.on_test_end(logs)
        return logs

    # --------------------------------------------------------------------------------------------------- mini-batches

    def _end_batch(self) -> None:
        rehearsed, kept = self._trainer.rehearsing(), self._before_stand_ins
        if self._stands is not None and self._trainer.ends_pass and not (rehearsed or self._trainer.voided):
            self._tell_counted(self._stands)
        self._end()
        self._before_stand_ins = None
        if rehearsed:
            self.model.reset_metrics()  # they are not sent to a newcomer, so what it threw away would stay in them
        elif kept is not None and kept.size:
            count(self.model, kept)
        self._heed_rank()

    def _guarded(self, train: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A failed all-reduce stops the traced step before any update; `fit` itself need not know.

        Its pipeline reads ahead. So the item that is being trained is fetched here, outside of what is traced, to be
        there if it must come again.
        """
        step: Callable[[Any], Any] | None = None

        def guarded(iterator: Any) -> Any:
            nonlocal step
            try:
                self._fetch(iterator)
                while self._trainer.weightless:  # Keras, and callbacks that count batches, never hear of it (I13)
                    self._end_batch()
                    self._fetch(iterator)
            except StopIteration:
                if self._shared and not self._trainer.rehearsing():
                    self._end_epoch()
                raise
            if step is None:
                step = self._traced(train, iterator.element_spec)
            with Voidable(self._trainer, self._ring):
                return step(self._item)
            return self.model.get_metrics_result()

        return guarded

    def _fetch(self, iterator: Any) -> None:
        """Fetch the next item, or the same item again, and what its step needs."""
        if self._held.again:
            self._held.again -= 1
        else:
            self._item = next(iterator)  # before anything waits for its weight: there may be none in this pass
            while self._held.passes_over():
                self._item = next(iterator)
        self._trainer.begin_batch()
        self._trainer.before_reduce()
        if self._shared and not self._trainer.rehearsing() and not self._trainer.own_samples():
            self._before_stand_ins = counted(self.model)

    def _traced(self, train: Callable[[Any], Any], spec: Any) -> Callable[[Any], Any]:
        """Make one step of Keras's on one item a function, traced once for all lengths of a batch, as Keras itself does
        it.
        """

        def step(item: Any) -> Any:
            return train([item])

        return step if self.model.run_eagerly else tf.function(step, input_signature=[spec], autograph=False)
