"""Lightning's counters: which batch of which epoch, how many updates, and what they were before the present step.

Owns: reading and setting them in the living loops. Does not own: what becomes of a mini-batch (`edl.lightning.loops`),
nor when counters travel (`edl.lightning.traveller`).

A mini-batch that is void must not have counted. So the counters are remembered as a step begins, which costs some
microseconds, and what travels in the middle of one is what was remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LAST = "is_last_batch"
STEPPED = "_batches_that_stepped"


class Counters:
    """Of one `Trainer.fit`."""

    def __init__(self, fit_loop: Any) -> None:
        epochs = fit_loop.epoch_loop
        # What Lightning counts while it trains; all are instances of its dataclasses, and live as long as the loops.
        self._holders = [
            *_leaves(fit_loop.epoch_progress),
            *_leaves(epochs.batch_progress),
            *_leaves(epochs.scheduler_progress),
            *_leaves(epochs.automatic_optimization.optim_progress),
            *_leaves(epochs.manual_optimization.optim_step_progress),
            *_leaves(epochs.val_loop.batch_progress),
        ]
        of_batches = (epochs.batch_progress.total, epochs.batch_progress.current)  # equal ones may be others
        self._batches = [place for place, one in enumerate(self._holders) if any(one is two for two in of_batches)]
        self._epochs = epochs
        self._begun: list[Any] | None = None

    def begin(self) -> None:
        """A step begins: until `end` these are the counters."""
        self._begun = self._now()

    def end(self, *, counted: bool, batches: int = 1) -> None:
        """It is over. Not counted, it leaves no trace. Counted, it counts so many batches: a worker whose share of it
        was short has made fewer, and all must validate at the same ones.
        """
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
        """As of the newest step that counts."""
        return self._now() if self._begun is None else self._begun

    def put(self, values: list[Any]) -> None:
        """Become what another worker's, or an earlier life's, are."""
        *numbers, stepped, last = values
        for holder, found in zip(self._holders, numbers, strict=True):
            vars(holder).update(found)
        setattr(self._epochs, STEPPED, stepped)
        setattr(self._epochs.batch_progress, LAST, last)
        if self._begun is not None:
            self._begun = values

    @property
    def batches(self) -> int:
        """Of the present epoch."""
        return int(self._epochs.batch_progress.current.ready)

    def _now(self) -> list[Any]:
        last = getattr(self._epochs.batch_progress, LAST)
        return [*(dict(vars(holder)) for holder in self._holders), getattr(self._epochs, STEPPED), last]


def _leaves(progress: Any) -> Iterator[Any]:
    """The parts of a progress that hold numbers alone."""
    inner = [value for value in vars(progress).values() if hasattr(value, "__dict__")]
    if not inner:
        yield progress
    for value in inner:
        yield from _leaves(value)
