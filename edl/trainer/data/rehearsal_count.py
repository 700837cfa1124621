"""Mini-batches that do not count: how many are due, and how many have ended.

They are a newcomer's first ones, and one in the place of data that never come. Owns: the two numbers. Does not own:
when there must be one (`edl.core.worker.worker_machine`), nor what is handed out for it
(`edl.trainer.data.epoch_cursor`).
"""

from __future__ import annotations


class Rehearsals:
    """Count a worker's rehearsals from its beginning on. The machine's commands change it; any thread may look."""

    def __init__(self) -> None:
        self.due = 0
        self.ended = 0

    @property
    def left(self) -> int:
        """Rehearsals to come, with the one that is being worked on."""
        return self.due - self.ended

    def add(self, number: int) -> None:
        self.due += number

    def end_one(self) -> None:
        self.ended += 1

    def end_all(self) -> None:
        self.ended = self.due
