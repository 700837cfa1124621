"""Lightning's counters: the batch, the epoch, the updates, and their values before the present step.

Owns: reading and setting them in the living loops. Does not own: the fate of a mini-batch (`edl.lightning.loops`), nor
when counters travel (`edl.lightning.lightning_state`).

A void mini-batch must not have counted. So the counters are remembered as a step begins, which costs some microseconds;
in the middle of a step the remembered values travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LAST = "is_last_batch"
STEPPED = "_batches_that_stepped"


class Counters:
    """The counters of one `Trainer.fit`."""

    def __init__(self, fit_loop: Any) -> None:
        epochs = fit_loop.epoch_loop
        # The objects in which Lightning counts while it trains; all are instances of its dataclasses, and live as long
        # as the loops.
        self._holders = [
            *_leaves(fit_loop.epoch_progress),
            *_leaves(epochs.batch_progress),
            *_leaves(epochs.scheduler_progress),
            *_leaves(epochs.automatic_optimization.optim_progress),
            *_leaves(epochs.manual_optimization.optim_step_progress),
            *_leaves(epochs.val_loop.batch_progress),
        ]
        # compared by identity: other counters may be equal
        of_batches = (epochs.batch_progress.total, epochs.batch_progress.current)
        self._batches = [place for place, one in enumerate(self._holders) if any(one is two for two in of_batches)]
        self._epochs = epochs
        self._begun: list[Any] | None = None

    def begin(self) -> None:
        """Begin a step: until `end` the present counters are the job's."""
        self._begun = self._now()

    def end(self, *, counted: bool, batches: int = 1) -> None:
        """End the step. A step that does not count leaves no trace; one that counts adds `batches` batches."""
        # A worker whose share of the step was short has trained fewer batches, and all workers must validate at the
        # same ones.
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if not counted:
            self.put(begun)
            return
        for place in self._batches:
            before: dict[str, int] = begun[place]
            vars(self._holders[place]).update({name: number + batches for name, number in before.items()})

    def read(self) -> list[Any]:
        """Return the counters as of the newest step that counts."""
        return self._now() if self._begun is None else self._begun

    def put(self, values: list[Any]) -> None:
        """Set the counters to those of another worker, or of an earlier life."""
        *numbers, stepped, last = values
        for holder, found in zip(self._holders, numbers, strict=True):
            vars(holder).update(found)
        setattr(self._epochs, STEPPED, stepped)
        setattr(self._epochs.batch_progress, LAST, last)
        if self._begun is not None:
            self._begun = values

    @property
    def batches(self) -> int:
        """Batches of the present epoch."""
        return int(self._epochs.batch_progress.current.ready)

    def _now(self) -> list[Any]:
        last = getattr(self._epochs.batch_progress, LAST)
        return [*(dict(vars(holder)) for holder in self._holders), getattr(self._epochs, STEPPED), last]


def _leaves(progress: Any) -> Iterator[Any]:
    """Yield the parts of a progress that hold numbers alone."""
    inner = [value for value in vars(progress).values() if hasattr(value, "__dict__")]
    if not inner:
        yield progress
    for value in inner:
        yield from _leaves(value)
