"""The script's position, which travels with a model: a newcomer goes on from there, and so does a resumed job.

Owns: what is told of the newest step (which epoch's is it, and is the next one begun?), of the script's pass over the
data, of the evaluations after that step, and of Keras's `fit`; and that it is up to date whenever this worker's state
may become another's. Does not own: how it travels (`edl.trainer.registered_state`), nor what a newcomer makes of it
(`edl.trainer.step_end`, `edl.tensorflow.fit_position`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from edl.trainer.data.epoch_cursor import PassSoFar
from edl.trainer.registered_state import STANDING, RegisteredState
from edl.trainer.shared_evaluation import Results


class LastStep(NamedTuple):
    step: int
    epoch: int | None


class ScriptStanding:
    """Position of one trainer's script. Belongs to the training thread."""

    def __init__(self, extras: RegisteredState) -> None:
        self._extras = extras
        self._registered = False
        self._ends: tuple[LastStep, ...] = ()  # the newest two
        self._fit: dict[str, Any] = {}  # of Keras

    def register(self) -> None:
        """Register the position, on all workers that train on edl's data, before they enter a ring of others."""
        if not self._registered:
            self._registered = True
            self._extras.add({STANDING: self.heard})

    def note_end(self, end: LastStep) -> None:
        """Note the mini-batch that is about to end; it may be void."""
        self._ends = (*self._ends[-1:], end)

    def tell(self, step: int, results: Results, *, at_end: bool, so_far: PassSoFar) -> None:
        """Update the position, as this worker's state of `step` may become another's, or a checkpoint.

        `at_end`: the script stands between that step and the next one, which it has not begun.
        """
        if self._registered:
            end = next((end for end in reversed(self._ends) if end.step == step), LastStep(step, None))
            told = {"step": step, "epoch": end.epoch, "at_end": at_end, "pass": list(so_far)}
            self._extras.values[STANDING] = {**told, "results": list(results), "fit": self._fit}

    @property
    def heard(self) -> dict[str, Any]:
        """Position that came with the newest state, or was told here since."""
        return self._extras.values.get(STANDING) or {}

    @property
    def fit(self) -> dict[str, Any]:
        """Progress of Keras's `fit` on the worker whose state came last; empty without one."""
        return self.heard.get("fit") or {}

    @fit.setter
    def fit(self, fit: dict[str, Any]) -> None:
        self._fit = fit
        if self._registered:
            self._extras.values[STANDING] = {**self.heard, "fit": fit}
