"""Measure how long workers' states last. This leader tells durations in events, and never keeps them.

A state that began under another leader has no length.
"""

from __future__ import annotations

from edl.protocol.record import WorkerState


class Durations:
    def __init__(self) -> None:
        self.asked_at: float | None = None  # the request that is being met; None: by another leader, or there is none
        self.planned_at: float | None = None  # the newest switch
        self._at: dict[str, tuple[WorkerState, float]] = {}
        self._spent: dict[tuple[str, WorkerState], float] = {}

    def enter(self, worker: str, state: WorkerState, now: float) -> None:
        """The worker is in `state` from now on. Its time in the state before is known then."""
        before, since = self._at.get(worker, (state, now))
        if before is not state:
            self._spent[worker, before] = now - since
        self._at[worker] = state, (since if before is state else now)

    def forget(self, worker: str) -> None:
        self._at.pop(worker, None)
        self._spent = {key: spent for key, spent in self._spent.items() if key[0] != worker}

    def spent_ms(self, worker: str, state: WorkerState, now: float) -> int | None:
        """Return how long the worker was in `state`, or has been until now; None: this leader has not seen that."""
        present, since = self._at.get(worker, (None, now))
        spent = now - since if present is state else self._spent.get((worker, state))
        return None if spent is None else round(1000 * spent)


def since_ms(began: float | None, now: float) -> int | None:
    return None if began is None else round(1000 * (now - began))
