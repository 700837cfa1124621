"""The mini-batches in which a script makes updates: those due follow from the updates in the present ring.

Owns: that rule. Does not own: what an update is (the adapters), nor what follows where one is missing
(`edl.trainer.void_batches`).

An update is due in each mini-batch once there was one in each of eight in a row, the first of this ring: workers whose
scripts do the same expect the same. Of a script that adds gradients up over mini-batches nothing is expected: what one
of its workers leaves out alone is found as the weights are compared. So it is in a ring's first mini-batches, where
that is soon (`edl.core.worker.divergence_finder`), and where a newcomer's script differs, which is to go before the
others.
"""

from __future__ import annotations

from typing import Final

from edl.core.worker.next_move import NEVER

IN_A_ROW: Final = 8


class UpdatesDue:
    """Updates that a worker expects in its present ring. Optimizers have the same numbers on all workers."""

    def __init__(self) -> None:
        self.soonest = NEVER  # the mini-batch by whose end the next update is due: read in the hot path
        self.in_backward = False  # a backward pass has begun to average, and not ended: an exception may have ended it
        self._due: dict[int, int] = {}
        self._newest: dict[int, int] = {}  # the mini-batch with the newest update of that optimizer in this ring
        self._row: dict[int, int] = {}  # as many have had one without a gap; NEVER: there was a gap

    def expect(self, optimizer: int) -> None:
        """Expect updates by `optimizer`, once they have shown to be regular."""
        self._set(optimizer, NEVER)

    def note(self, optimizer: int, step: int) -> None:
        """Note an update by `optimizer` in mini-batch `step`, perhaps not the first."""
        newest = self._newest.get(optimizer)
        if newest == step:
            return
        row = self._row.get(optimizer, 0)
        regular = row != NEVER and newest in {None, step - 1}
        self._newest[optimizer], self._row[optimizer] = step, row + 1 if regular else NEVER
        self._set(optimizer, step + 1 if regular and row + 1 >= IN_A_ROW else NEVER)

    def missing(self, step: int) -> tuple[int, ...]:
        """Return the optimizers whose updates were due by the end of mini-batch `step`, and have not come."""
        return tuple(optimizer for optimizer, due in self._due.items() if due <= step)

    def made_after(self, step: int) -> int:
        return sum(newest > step for newest in self._newest.values())

    def skip(self, step: int) -> None:
        # No worker has made the updates that are missing.
        for optimizer in self.missing(step):
            self._row[optimizer] = NEVER
            self._set(optimizer, NEVER)

    def begin_ring(self, void: tuple[int, ...] = (), step: int = 0) -> None:
        """Forget the ring before, in which a newcomer was not. `void`: due in `step`, which comes again."""
        self._newest.clear()
        self._row.clear()
        for optimizer in self._due:
            self._set(optimizer, step if optimizer in void else NEVER)

    def _set(self, optimizer: int, due: int) -> None:
        known = self._due
        known[optimizer] = due
        self.soonest = due if len(known) == 1 else min(known.values())
