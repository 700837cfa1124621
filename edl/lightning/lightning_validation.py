"""Lightning's validation and test, shared out among all workers.

Owns: the loop over this worker's batches, and the figures of all workers at its end. Does not own: which worker
computes which batch (`edl.core.worker.evaluation_shares`), which batches there are (`edl.torch.shared_batches`),
metrics (`edl.lightning.shared_metrics`).

As in `edl.lightning.loops`, the loop is Lightning's own object with a class that inherits from its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.utilities import _no_grad_context, _select_data_fetcher

from edl.lightning.shared_metrics import ModuleMetrics, logged_share, take_logged
from edl.torch.loop_collectives import Ask, LoopCollectives
from edl.torch.shared_batches import SharedBatches, packed_values, shared_batches, unpacked_values
from edl.torch.torch_process import trainer as seat

IN_STEP = (
    "validation_step and test_step of a worker see its share of the data, so they call nothing that all workers must "
    "call: log metrics, gather in on_validation_epoch_end, or say EdlStrategy(share_evaluation=False)"
)
IN_SETUP = "a newcomer asks for its validation data when the others do not: nothing that all must call can stand there"


class LoopShare:
    """Compute the batches of one DataLoader through Lightning's step and hooks, as
    `edl.trainer.shared_evaluation.Work`.
    """

    def __init__(self, loop: SharedEvaluationLoop, batches: SharedBatches, place: int) -> None:
        self._loop, self._batches, self._place = loop, batches, place
        self._has_computed = False
        self._metrics = ModuleMetrics(loop.trainer.lightning_module)

    @property
    def units(self) -> int:
        return self._batches.count

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:
        self._has_computed = self._has_computed or bool(units)
        with self._loop.words.apart(IN_STEP):
            for count, (unit, batch) in enumerate(zip(units, self._batches.load(units), strict=True), 1):
                self._loop._evaluation_step(batch, unit, self._place, None)
                if not goes_on():
                    return units[:count]
        return units

    def found(self) -> bytes:
        return packed_values({"logged": logged_share(self._loop._results), "metrics": self._metrics.share()})

    def take(self, found: Sequence[bytes]) -> None:
        """Set this worker's figures to those of all workers."""
        shares = [unpacked_values(one) for one in found]
        loop = self._loop
        # A worker that has computed nothing computes a batch all the same, and drops its figures: else the lists that a
        # script fills in its step were empty on this worker.
        if self.units and not self._has_computed:
            logged = set(loop._results)
            self.compute([0], lambda: True)
            for key in set(loop._results) - logged:
                del loop._results[key]
        self._metrics.take([share["metrics"] for share in shares])
        module, strategy = loop.trainer.lightning_module, loop.trainer.strategy
        take_logged(loop._results, [share["logged"] for share in shares], module, strategy.reduce)
        with loop.words.apart(IN_STEP):  # the figures are those of all workers: `sync_dist` has nothing to add
            loop._results.metrics(on_step=False)


class SharedEvaluationLoop(_EvaluationLoop):  # type: ignore[misc]
    """The evaluation loop of `trainer.fit`, `validate` or `test`."""

    words: LoopCollectives
    between: Callable[[], Ask | None]
    shared = False  # whether the evaluation under way is shared

    def setup_data(self) -> None:
        """Load the data on each worker by itself, as a newcomer does so at another time."""
        with self.words.apart(IN_SETUP):
            super().setup_data()

    @_no_grad_context  # type: ignore[untyped-decorator]
    def run(self) -> Any:
        self.setup_data()
        plan = None if self.skip or self.trainer.sanity_checking else self._plan()
        self.shared = plan is not None
        if plan is None:
            return super().run()
        self._begin()
        self.on_run_start()
        for place, batches in enumerate(plan):
            self._results.dataloader_idx = place if self.num_dataloaders > 1 else None
            share = LoopShare(self, batches, place)
            share.take((self.between() or seat.evaluate_shared)(share))
            self._store_dataloader_outputs()
        self._has_run = True  # also if other workers had all batches: callbacks decide by it
        return self.on_run_end()

    def _begin(self) -> None:
        """Do Lightning's `reset()`, without fetching the first batches."""
        self._has_run = False
        self._logged_outputs: list[Any] = []
        self.batch_progress.reset_on_run()
        self._data_fetcher = _select_data_fetcher(self.trainer, self.trainer.state.stage)
        self._results.clear()  # drops the entries made for values that other workers have logged

    def _plan(self) -> list[SharedBatches] | None:
        """Return the batches of each DataLoader; None if one of them cannot be shared out."""
        loaders: Any = self._combined_loader
        fetcher = _select_data_fetcher(self.trainer, self.trainer.state.stage)
        if not self._is_sequential or isinstance(fetcher, _DataLoaderIterDataFetcher):
            return None
        found = [shared_batches(one, most) for one, most in zip(loaders.flattened, self.max_batches, strict=True)]
        return None if None in found else found  # type: ignore[return-value]


def share_out(trainer: Any, words: LoopCollectives, between: Callable[[], Ask | None]) -> None:
    """Share out the evaluations of a trainer. `between`: as in `words`."""
    for loop in (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop):
        loop.__class__ = SharedEvaluationLoop
        loop.words, loop.between = words, between
