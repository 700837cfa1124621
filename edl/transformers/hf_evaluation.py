"""The evaluation and prediction of Hugging Face's Trainer, shared out among all workers.

Owns: which batches this worker computes, and giving those of all workers to the Trainer's loop. Does not own: which
worker computes which (`edl.core.worker.evaluation_shares`), nor the use that the loop makes of them (the Trainer).

The Trainer asks for a batch, and for the model's output for it. At the first of these questions all workers compute
their shares and exchange them; from then on the answers are read from memory. So all workers get the figures that one
worker alone would have got, and hold the state that it would hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers.trainer_pt_utils import find_batch_size

from edl.torch.loop_collectives import Ask
from edl.torch.shared_batches import SharedBatches, packed_values, unpacked_values

Predict = Callable[[Any], tuple[Any, Any, Any]]  # of a batch: loss, logits, labels

TUPLE = "\0tuple"  # marks a tuple, which must not come back as a list


class PredictedShare:
    """Compute the batches of one DataLoader through the Trainer's prediction step, as
    `edl.trainer.shared_evaluation.Work`.
    """

    def __init__(self, batches: SharedBatches, predict: Predict, kept: str | None) -> None:
        self.units = batches.count
        self._batches, self._predict, self._kept = batches, predict, kept
        self._found: list[bytes] = []

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:
        for count, (unit, inputs) in enumerate(zip(units, self._batches.load(units), strict=True), 1):
            samples = find_batch_size(inputs)
            predicted = [_marked(one) for one in self._predict(inputs)]
            kept = inputs[self._kept] if self._kept else None
            self._found.append(packed_values([unit, samples, predicted, kept]))
            if not goes_on():
                return units[:count]
        return units

    def found(self) -> bytes:
        return packed_values(self._found)


class PredictedBatches:
    """The batches that the Trainer's loop iterates, for which the model's output is already known."""

    def __init__(
        self,
        batches: SharedBatches,
        predict: Predict,
        main_input: str,
        accelerator: Any,
        *,
        keeps: bool,
        ask: Ask,
    ) -> None:
        """`keeps`: the loop reads the model's main input, too. `ask`: exchanges shares among all workers."""
        self._batches, self._predict, self._main_input = batches, predict, main_input
        self._accelerator, self._keeps, self._ask = accelerator, keeps, ask
        self._answer: tuple[Any, Any, Any] = (None, None, None)
        # Attributes that Accelerate reads, to count a loss as often as its batch has samples.
        self.end_of_dataloader = False  # with the newest batch
        whole = batches.loader.batch_sampler.drop_last  # type: ignore[union-attr]  # Accelerate's loaders lose their own
        self.remainder = -1 if whole else len(batches.loader.dataset) % batches.size  # type: ignore[arg-type]

    @property
    def dataset(self) -> Any:
        return self._batches.loader.dataset

    @property
    def batch_size(self) -> int:
        return self._batches.size

    def __len__(self) -> int:
        """Return the number of batches of all workers."""
        return self._batches.count

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        share = PredictedShare(self._batches, self._predict, self._main_input if self._keeps else None)
        told = (raw for one in self._ask(share) for raw in unpacked_values(one))
        found = sorted((unpacked_values(raw) for raw in told), key=lambda one: int(one[0]))
        state = self._accelerator.gradient_state
        state._add_dataloader(self)
        try:
            for number, (_, samples, predicted, kept) in enumerate(found, 1):
                loss, logits, labels = (_on(_unmarked(one), self._accelerator.device) for one in predicted)
                self._answer = loss, logits, labels
                self.end_of_dataloader = number == len(found)
                yield {self._main_input: torch.empty(samples) if kept is None else kept}
        finally:
            state._remove_dataloader(self)

    def answer(self, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
        """Return the model's output for the newest batch, in the place of the Trainer's `prediction_step`."""
        return self._answer


def _marked(value: Any) -> Any:
    if isinstance(value, tuple):
        return {TUPLE: [_marked(one) for one in value]}
    if isinstance(value, list):
        return [_marked(one) for one in value]
    return {name: _marked(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    if TUPLE in value:
        return tuple(_unmarked(one) for one in value[TUPLE])
    return {name: _unmarked(one) for name, one in value.items()}


def _on(value: Any, device: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_on(one, device) for one in value)
    if isinstance(value, Mapping):
        return {name: _on(one, device) for name, one in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
