"""A training loader that is prepared, by `edl.prepare` or Accelerate: asking for a batch is the end of the step before.

Owns: where steps end in such a script. Does not own: the samples (`edl.torch.loader_conversion`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from edl.errors import UsageError
from edl.torch.loader_conversion import StepParts
from edl.torch.torch_process import framework, trainer


class ElasticBatches:
    """Mini-batches of this worker, one after the other, as the script's loader has them."""

    def __init__(self, parts: StepParts, placed: Callable[[Any], Any]) -> None:
        self.parts = parts
        self._placed = placed
        self._updates: int | None = None  # there were when the newest batch was given out, and its step has not ended
        self._step = 0  # of the newest batch
        self.between = False  # the newest step has ended, and the next one has not begun

    def __len__(self) -> int:
        """Batches of this worker in a whole epoch, at the present size."""
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        self._end_left()
        for batch in self.parts:
            self._updates, self._step, self.between = framework.updates(), trainer.step(), False
            trainer.give_out(self._end)
            yield self._placed(batch)
            if self.parts.last and self._updates is not None:  # else an evaluation has ended it
                self._end()

    def epochs(self, wanted: int) -> Iterator[int]:
        """Iterate over the job's passes over its data: for the loop around the loop over batches, in the place of
        `range(wanted)`. A newcomer comes into the pass that the others are at, and stops with them. A pass that the
        script leaves by `break` is followed by what is left of its epoch.
        """
        shards = self.parts.loader.shards
        while (done := shards.epochs_done) < wanted:
            yield done
            self._end_left()

    @property
    def in_step(self) -> bool:
        """Tell whether a batch was given out whose step has not ended."""
        return self._updates is not None

    @property
    def dataset(self) -> Any:
        return self.parts.dataset

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: each pass has an order of its own."""

    def _end_left(self) -> None:
        """End the step in which the script has left its iteration, if its update was made, or it is void."""
        if self._updates is not None and (trainer.voided or framework.updates() != self._updates):
            self.parts.loader.shards.leave()  # what the script does between two passes may be done: not by newcomers
            self._end()

    def _end(self) -> None:
        self._updates, self.between = None, True
        trainer.give_out(None)
        if trainer.step() != self._step:
            raise UsageError(
                "notify_batch_end() was called in a loop over a prepared loader, which ends each mini-batch where the "
                "next one is asked for: leave the call away"
            )
        trainer.notify_batch_end()
