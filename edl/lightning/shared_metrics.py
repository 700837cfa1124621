"""Exchange the metrics of each worker's share of an evaluation, and combine them.

Owns: the values that a script logs, and the metrics of torchmetrics that its module holds. Does not own: which worker
computes which batch (`edl.core.worker.evaluation_shares`), nor computing it (`edl.lightning.lightning_validation`).

Each worker begins an evaluation with empty metrics, so that their state at the end is its share and nothing else. The
state that a metric held before is added again at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_max, dim_zero_mean, dim_zero_min, dim_zero_sum

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
