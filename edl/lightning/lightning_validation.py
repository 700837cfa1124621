"""Lightning's validation and test, shared out among all workers.

Owns: the loop over this worker's batches, and the metrics of all workers at its end. Does not own: which worker
computes which batch (`edl.core.worker.evaluation_shares`), which batches there are (`edl.torch.shared_batches`).

As in `edl.lightning.loops`, the loop is Lightning's own object with a class that inherits from its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.utilities import _no_grad_context, _select_data_fetcher
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_max, dim_zero_mean, dim_zero_min, dim_zero_sum

from edl.torch.loop_collectives import Ask, LoopCollectives
from edl.torch.shared_batches import SharedBatches, packed_values, shared_batches, unpacked_values
from edl.torch.torch_process import trainer as seat

# Each worker begins an evaluation with empty metrics, so that their state at the end is its share and nothing else. The
# state that a metric held before is added again at the end.


TOLD = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "add_dataloader_idx", "dataloader_idx")
UPDATES = "_update_count"

State = dict[str, Any]


class ModuleMetrics:
    """The metrics of a module, through one evaluation."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before = {name: _state(metric) for name, metric in self._metrics()}
        for _, metric in self._metrics():
            metric.reset()

    def share(self) -> dict[str, State]:
        """Return this worker's state of each metric."""
        for one in self._module.modules():
            if isinstance(one, MetricCollection):
                one._compute_groups_create_state_ref()  # of several metrics with one state, only one was updated
        return {name: _state(metric) for name, metric in self._metrics() if metric._update_count}

    def take(self, shares: Sequence[Mapping[str, State]]) -> None:
        """Combine the states of all workers, after the state that each metric held before."""
        for name, metric in self._metrics():
            parts = [share[name] for share in shares if name in share]
            before = self._before[name]
            if parts and before[UPDATES]:
                parts.insert(0, before)
            _put(metric, _together(metric, parts) if parts else before)

    def _metrics(self) -> Iterator[tuple[str, Any]]:
        for name, one in self._module.named_modules():
            if isinstance(one, Metric):
                yield name, one


def logged_share(results: Any) -> dict[str, State]:
    """Return the values that this worker has logged for the end of the evaluation, of the present DataLoader."""
    return {key: _logged(one) for key, one in results.valid_items() if one.meta.on_epoch}


def take_logged(results: dict[str, Any], shares: Sequence[Mapping[str, State]], module: Any, reduce: Any) -> None:
    """Combine the values that all workers have logged, also those that this worker, which had no batch, has not."""
    for key in dict.fromkeys(key for share in shares for key in share):
        parts = [share[key] for share in shares if key in share]
        one = results.get(key)
        if one is None:
            one = results[key] = _made(parts[0], reduce).to(module.device)
        if one.is_tensor:
            _sum_up(one, parts)
        else:
            one.value = module.get_submodule(parts[0]["metric"])
        one._update_count, one._computed, one.has_reset = len(parts), None, False


def _logged(one: Any) -> State:
    told = {name: getattr(one.meta, name) for name in TOLD}
    state = {"meta": told, "reduce": one.meta.reduce_fx.__name__, "metric": one.meta.metric_attribute}
    if one.is_tensor:
        state["value"] = one.value
        state["samples"] = one.cumulated_batch_size if one.meta.is_mean_reduction else 0
    return state


def _made(told: State, reduce: Any) -> Any:
    meta = _Metadata(reduce_fx=told["reduce"], metric_attribute=told["metric"], **told["meta"])
    meta.sync = _Sync(fn=reduce)
    return _ResultMetric(meta, is_tensor="value" in told)


def _sum_up(one: Any, parts: Sequence[State]) -> None:
    values = torch.stack([torch.as_tensor(part["value"], device=one.value.device) for part in parts])
    if one.meta.is_mean_reduction:
        one.cumulated_batch_size = sum(torch.as_tensor(part["samples"]) for part in parts).to(one.value.device)  # type: ignore[union-attr]
    if one.meta.is_max_reduction or one.meta.is_min_reduction:
        one.value = values.amax(0) if one.meta.is_max_reduction else values.amin(0)
    else:
        one.value = values.sum(0)


def _state(metric: Any) -> State:
    found = {name: getattr(metric, name) for name in metric._defaults}
    held = {name: list(one) if isinstance(one, list) else one.detach().clone() for name, one in found.items()}
    return {**held, UPDATES: metric._update_count}


def _put(metric: Any, state: State) -> None:
    for name in metric._defaults:
        setattr(metric, name, _on(metric, state[name]))
    metric._update_count, metric._computed = state[UPDATES], None


def _on(metric: Any, value: Any) -> Any:
    return [one.to(metric.device) for one in value] if isinstance(value, list) else value.to(metric.device)


def _together(metric: Any, parts: Sequence[State]) -> State:
    updates = [part[UPDATES] for part in parts]
    found = {}
    for name, default in metric._defaults.items():
        values = [_on(metric, part[name]) for part in parts]
        found[name] = _reduced(metric._reductions[name], values, updates, default)
    return {**found, UPDATES: sum(updates)}


def _reduced(reduction: Any, values: list[Any], updates: list[int], default: Any) -> Any:
    """Combine states as torchmetrics does over processes; a mean is weighted by updates. `default`: an untouched
    state.
    """
    if isinstance(values[0], list):
        return [one for value in values for one in value]
    if len(values) == 1:
        return values[0]
    known: dict[Any, Callable[[], torch.Tensor]] = {
        None: lambda: _rows(values, default),
        dim_zero_cat: lambda: dim_zero_cat(values),
        dim_zero_mean: lambda: _weighted(torch.stack(values), updates),
        dim_zero_sum: lambda: torch.stack(values).sum(0),
        dim_zero_max: lambda: torch.stack(values).amax(0),
        dim_zero_min: lambda: torch.stack(values).amin(0),
    }
    return known[reduction]() if reduction in known else reduction(torch.stack(values))


def _rows(values: list[torch.Tensor], default: torch.Tensor) -> torch.Tensor:
    """Concatenate the rows of all workers, also rows that an earlier evaluation has left here."""
    return torch.cat([one if one.dim() > default.dim() else one[None] for one in values])


def _weighted(values: torch.Tensor, updates: list[int]) -> torch.Tensor:
    weights = torch.tensor(updates, dtype=torch.float64, device=values.device)
    shape = (-1, *[1] * (values.dim() - 1))
    return ((values * weights.view(shape)).sum(0) / weights.sum()).to(values.dtype)


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
