"""Lightning's training loop, whose mini-batches end at `edl.notify_batch_end()`.

Owns: where a mini-batch of Lightning's ends, and whether the loop goes on to the next or repeats it. Does not own: the
counters and the state that travels (`edl.lightning.lightning_state`), nor the ring (`edl.lightning.strategy`).

A mini-batch ends after its callbacks (`on_train_batch_end`) and before anything that may follow it: a validation, the
end of an epoch. There all workers are in the same state, and so is a newcomer after its rehearsal; it goes on as they
do. A mini-batch that is void, has no samples, or is a rehearsal, leaves its loop before its schedules and callbacks.

The loops are Lightning's own objects, which get a class that inherits from theirs, so that references to them stay
valid. They are no public interface: the parts used of them are tested, and the extra `[lightning]` names the version.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Any

from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.loops.optimization.manual import _ManualOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from edl.lightning.lightning_state import Counters, LightningState
from edl.torch.loader_conversion import StepParts
from edl.torch.loop_steps import LoopSteps, StepEnd, StepSeat


class Uncounted(Exception):
    """Raised to leave the loop after a mini-batch that does not count, before the hooks of a batch that counts."""


class SavedAtEnd(Exception):
    """Raised where an earlier life was saved at the end of an epoch: the end of the epoch comes before the fetched
    batch.
    """


class FateOfBatch(Enum):
    """The outcome of a batch in Lightning's loop."""

    PART = auto()  # gradients are added up; the step goes on
    COUNTED = auto()  # the last batch of a step
    UNCOUNTED = auto()  # likewise, of a step that does not count
    NOT_TRAINED = auto()  # an epoch ended before the batch


class LightningSteps(LoopSteps):
    """The steps of one `Trainer.fit` as an elastic job: shared by all its loops."""

    def __init__(self, trainer: Any, seat: StepSeat, parts: StepParts, limit: float) -> None:
        self.trainer, self.parts = trainer, parts
        self.counters = Counters(trainer.fit_loop)
        self.traveller = LightningState(trainer, self.counters, self.ending)
        self.traveller.limit = limit
        super().__init__(seat, self.traveller)

    def begin_step(self) -> None:
        self.counters.begin()
        super().begin_step()

    def check_counts(self) -> None:
        """Settle the step after its update, or where it leaves the update out. Raises Uncounted."""
        if self.parts.last and not self.settle():
            raise Uncounted

    def end_step(self, *, counted: bool) -> StepEnd:
        rehearsed = self.seat.rehearsing()
        self.counters.end(counted=counted, batches=self.trainer.accumulate_grad_batches)
        ended = super().end_step(counted=counted)
        if rehearsed:
            self.trainer.fit_loop.epoch_loop._results.reset()
        return ended

    def is_over(self, fetcher: ElasticFetcher) -> bool:
        """Tell whether Lightning's epoch ended with the step that has just ended."""
        if math.isinf(self.traveller.limit):
            return not fetcher.look() or self.is_beyond()
        return self.counters.batches >= self.traveller.limit

    def was_over(self) -> bool:
        """Tell whether an earlier life was saved where an epoch had ended, before the work that follows an epoch."""
        if math.isinf(self.traveller.limit):
            return self.is_beyond()
        return self.counters.batches >= self.traveller.limit


class ElasticFetcher(_PrefetchDataFetcher):  # type: ignore[misc]
    """Fetch each batch after the one before is trained, and not earlier.

    Only then is it known whether a batch is the last of an epoch: a lost worker leaves samples, and the others go on
    with these where all had expected the end.
    """

    elastic: LightningSteps
    _coming: Any = None

    def __iter__(self) -> Any:
        self._coming, self.elastic.traveller.open_pass = None, None
        self.prefetch_batches = 0  # Lightning's own look ahead, where a loader has no length
        return super().__iter__()

    def look(self) -> bool:
        """Tell whether there is one more batch in this pass."""
        try:
            self._coming = self._fetched()
        except StopIteration:
            return False
        return True

    def __next__(self) -> Any:
        elastic = self.elastic
        batch, self._coming = self._coming or self._fetched(), None
        if elastic.take_over() and elastic.was_over():
            elastic.between = True
            raise SavedAtEnd
        if elastic.parts.first:
            elastic.begin_step()
        if elastic.parts.begin_part():
            elastic.counters.begin_part()
        return batch

    def _fetched(self) -> Any:
        elastic, self.done = self.elastic, False
        elastic.note_fetched()
        anew, elastic.begun_anew = elastic.begun_anew, False
        try:
            return self._plain()
        except StopIteration:
            # The others are an epoch ahead of a worker that missed its end; and an epoch whose number of batches the
            # script has
            # limited may reach from one pass over the data into the next.
            if not anew and math.isinf(elastic.traveller.limit):
                raise
        super().__iter__()
        return self._plain()

    def _plain(self) -> Any:
        try:
            return super().__next__()
        finally:
            self.done = False  # Lightning derives it from the loader's length, which changes with the number of workers


class ElasticAutomatic(_AutomaticOptimization):  # type: ignore[misc]
    """Optimization with one optimizer, which Lightning steps."""

    elastic: LightningSteps

    def run(self, optimizer: Any, batch_idx: int, kwargs: Any) -> Any:
        if self.elastic.parts.of_virtual_workers:
            output = self._run_part(optimizer, batch_idx, kwargs)
        else:
            output = super().run(optimizer, batch_idx, kwargs)
        self.elastic.check_counts()
        return output

    def _run_part(self, optimizer: Any, batch_idx: int, kwargs: Any) -> Any:
        """Compute one batch of a virtual worker, whose backward() tells whether an update is due."""
        closure = self._make_closure(kwargs, optimizer, batch_idx)
        loss = closure()
        if self.elastic.parts.last:
            self._optimizer_step(batch_idx, lambda: loss)
        result = closure.consume_result()
        return {} if result.loss is None else result.asdict()

    def _make_zero_grad_fn(self, batch_idx: int, optimizer: Any) -> Any:  # noqa: ARG002 - a step may be of fewer parts
        return super()._make_zero_grad_fn(0 if self.elastic.parts.first else 1, optimizer)


class ElasticManual(_ManualOptimization):  # type: ignore[misc]
    """Optimization with optimizers that the script steps."""

    elastic: LightningSteps

    def run(self, *args: Any, **kwargs: Any) -> Any:
        output = super().run(*args, **kwargs)
        self.elastic.check_counts()
        return output


class ElasticEpochLoop(_TrainingEpochLoop):  # type: ignore[misc]
    elastic: LightningSteps
    _outcome = FateOfBatch.COUNTED

    def advance(self, data_fetcher: Any) -> None:
        hook = self.trainer.lightning_module._current_fx_name
        try:
            super().advance(data_fetcher)
            self._outcome = FateOfBatch.COUNTED if self.elastic.parts.last else FateOfBatch.PART
        except Uncounted:
            self.trainer.lightning_module._current_fx_name = hook
            self.trainer._logger_connector.on_batch_end()
            self._outcome = FateOfBatch.UNCOUNTED
        except SavedAtEnd:
            self._outcome = FateOfBatch.NOT_TRAINED

    def on_advance_end(self, data_fetcher: Any) -> None:
        """End the batch's step, and validate if a validation is due."""
        if self._outcome is FateOfBatch.NOT_TRAINED:
            self.batch_progress.is_last_batch = True
        elif self._outcome is FateOfBatch.PART or not self._end_step(data_fetcher):
            return
        super().on_advance_end(data_fetcher)

    def _end_step(self, fetcher: ElasticFetcher) -> bool:
        """End a step; tell whether the work that follows a batch is to be done."""
        elastic = self.elastic
        ended = elastic.end_step(counted=self._outcome is FateOfBatch.COUNTED)
        if ended is StepEnd.AGAIN:
            return False
        over = elastic.is_over(fetcher)
        self.batch_progress.is_last_batch = over
        if over:
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        return over or ended is StepEnd.COUNTED

    def _accumulated_batches_reached(self) -> bool:
        return self.elastic.parts.last


def make_elastic(elastic: LightningSteps) -> None:
    """Make the loops of a trainer that is about to train elastic."""
    loop = elastic.trainer.fit_loop.epoch_loop
    fetcher = elastic.trainer.fit_loop._data_fetcher
    kinds = (
        (loop, ElasticEpochLoop),
        (loop.automatic_optimization, ElasticAutomatic),
        (loop.manual_optimization, ElasticManual),
        (fetcher, ElasticFetcher),
    )
    for one, kind in kinds:
        one.__class__ = kind
        one.elastic = elastic
    iter(fetcher)
