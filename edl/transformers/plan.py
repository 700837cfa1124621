"""How long a training is, in updates, while the number of workers changes.

Owns: where the learning rate's schedule is, and which update is the last one. Does not own: the schedule itself.

A job that trains so many epochs makes fewer updates with more workers. Hugging Face counts them beforehand, for the
workers that there are at its beginning. So an update with other workers moves the schedule on by another amount: it is
at its end when the data is.
"""

from __future__ import annotations

from typing import Any

import msgspec


class UpdatePlan(msgspec.Struct):
    """Of one training; travels."""

    updates: int  # as counted for the workers at the beginning
    workers: int  # at the beginning
    epochs: float
    by_epochs: bool  # not by a number of updates that the script has said
    position: float = 0.0  # of the schedule, in those updates

    def advance(self, workers: int) -> None:
        """One more update, of so many workers."""
        self.position += workers / self.workers if self.by_epochs and workers != self.workers else 1

    def is_over(self, epoch: int, global_step: int, *, pass_over: bool) -> bool:
        """After this update, in the epoch of this number."""
        if not self.by_epochs:
            return global_step >= self.updates
        if pass_over and epoch + 1 >= self.epochs:
            return True
        return self.epochs != int(self.epochs) and epoch + 1 > self.epochs and self.position >= self.updates

    def most_updates(self, global_step: int, *, over: bool) -> int:
        """What the Trainer's callbacks take for the last one."""
        if not self.by_epochs:
            return self.updates
        return global_step if over else max(self.updates, global_step + 1)


def move(schedule: Any, position: float) -> None:
    """A schedule of the Trainer's own, which is a function of the number of updates."""
    schedule.last_epoch = (int(position) if position == int(position) else position) - 1
    schedule.step()
