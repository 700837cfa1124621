"""The length of a training, in updates, while the number of workers changes.

Owns: the position of the learning rate's schedule, and which update is the last one. Does not own: the schedule itself.

A job that trains a given number of epochs makes fewer updates with more workers. Hugging Face counts the updates
beforehand, for the number of workers at the beginning. So an update with another number of workers moves the schedule
on by another amount: the schedule ends when the data does.
"""

from __future__ import annotations

from typing import Any

import msgspec


class UpdatePlan(msgspec.Struct):
    """The plan of one training; it travels."""

    updates: int  # as counted for the number of workers at the beginning
    workers: int  # at the beginning
    epochs: float
    by_epochs: bool  # else by a number of updates that the script gives
    position: float = 0.0  # of the schedule, in `updates`

    def advance(self, workers: int) -> None:
        """Count one more update, made by `workers` workers."""
        self.position += workers / self.workers if self.by_epochs and workers != self.workers else 1

    def is_over(self, epoch: int, global_step: int, *, pass_over: bool) -> bool:
        """Tell whether the training is over after this update, in epoch number `epoch`."""
        if not self.by_epochs:
            return global_step >= self.updates
        if pass_over and epoch + 1 >= self.epochs:
            return True
        return self.epochs != int(self.epochs) and epoch + 1 > self.epochs and self.position >= self.updates

    def most_updates(self, global_step: int, *, over: bool) -> int:
        """Return the number that the Trainer's callbacks take for the last update."""
        if not self.by_epochs:
            return self.updates
        return global_step if over else max(self.updates, global_step + 1)


def move(schedule: Any, position: float) -> None:
    """Move a schedule of the Trainer's own, which is a function of the number of updates."""
    schedule.last_epoch = (int(position) if position == int(position) else position) - 1
    schedule.step()
