"""In which mini-batches a script makes updates: what is due follows from those that it has made in the present ring.

Owns: that rule. Does not own: what an update is (the adapters), nor what follows where one is missing
(`edl.trainer.skipped_update`).

Workers whose scripts do the same expect the same: an update is due in a ring's first mini-batch, then in the next one,
and then after as many as the newest one came after the one before it. Where none came on any worker, it is due in the
next mini-batch, then after two, four and so on: one that never comes is soon asked for seldom.
"""

from __future__ import annotations

from edl.core.worker.moves import NEVER


class UpdatesDue:
    """Of one worker in its present ring. Optimizers have numbers, the same on all workers."""

    def __init__(self) -> None:
        self.soonest = NEVER  # the mini-batch by whose end the next update is due: read in the hot path
        self._due: dict[int, int] = {}
        self._newest: dict[int, int] = {}  # the mini-batch with the newest update of that optimizer in this ring
        self._skips: dict[int, int] = {}  # times that no worker has made one since

    def expect(self, optimizer: int) -> None:
        """Expect an update by `optimizer` in the mini-batch being worked on."""
        self._set(optimizer, 0)

    def note(self, optimizer: int, step: int) -> None:
        """Note an update by `optimizer` in mini-batch `step`, perhaps not the first."""
        newest = self._newest.get(optimizer)
        if newest != step:
            self._newest[optimizer], self._skips[optimizer] = step, 0
            self._set(optimizer, step + (step - newest if newest else 1))

    def missing(self, step: int) -> tuple[int, ...]:
        """Return the optimizers whose updates were due by the end of mini-batch `step`, and have not come."""
        return tuple(optimizer for optimizer, due in self._due.items() if due <= step)

    def skip(self, step: int) -> None:
        """No worker has made what is missing."""
        for optimizer in self.missing(step):
            skips = self._skips.get(optimizer, 0)
            self._skips[optimizer] = skips + 1
            self._set(optimizer, step + 2**skips)

    def begin_ring(self) -> None:
        """Forget the ring before, in which a newcomer was not."""
        self._newest.clear()
        self._skips.clear()
        for optimizer in self._due:
            self._set(optimizer, 0)

    def _set(self, optimizer: int, due: int) -> None:
        known = self._due
        known[optimizer] = due
        self.soonest = due if len(known) == 1 else min(known.values())
