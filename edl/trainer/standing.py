"""What travels beside a model of where its script stands: a newcomer goes on from there, and so does a resumed job.

Owns: what is told of the newest step (which epoch's is it, and is the next one begun?), of the script's pass over the
data, of the evaluations after that step, and of Keras's `fit`; and that it is what this worker knows whenever its state
may become another's. Does not own: how it travels (`edl.trainer.extras`), nor what a newcomer makes of it
(`edl.trainer.batch_ends`, `edl.tensorflow.fitting`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from edl.trainer.data.passes import PassSoFar
from edl.trainer.evaluation import Results
from edl.trainer.extras import STANDING, Extras


class LastStep(NamedTuple):
    """Of one step."""

    step: int
    epoch: int | None


class ScriptStanding:
    """Of one trainer; belongs to the training thread."""

    def __init__(self, extras: Extras) -> None:
        self._extras = extras
        self._registered = False
        self._ends: tuple[LastStep, ...] = ()  # the newest two
        self._fit: dict[str, Any] = {}  # of Keras

    def register(self) -> None:
        """All workers that train on edl's data do, before they enter a ring of others."""
        if not self._registered:
            self._registered = True
            self._extras._add({STANDING: self.heard})

    def note_end(self, end: LastStep) -> None:
        """The mini-batch that is about to end; it may be void."""
        self._ends = (*self._ends[-1:], end)

    def tell(self, step: int, results: Results, *, at_end: bool, so_far: PassSoFar) -> None:
        """This worker's state of `step` may become another's, or a checkpoint. `at_end`: the script stands between that
        step and the next one, which it has not begun.
        """
        if self._registered:
            end = next((end for end in reversed(self._ends) if end.step == step), LastStep(step, None))
            told = {"step": step, "epoch": end.epoch, "at_end": at_end, "pass": list(so_far)}
            self._extras._put(STANDING, {**told, "results": list(results), "fit": self._fit})

    @property
    def heard(self) -> dict[str, Any]:
        """What came with the newest state, or was told here since."""
        return self._extras._get(STANDING) or {}

    @property
    def fit(self) -> dict[str, Any]:
        """Where Keras's `fit` stands, by the worker whose state came last; nothing where there is none."""
        return self.heard.get("fit") or {}

    @fit.setter
    def fit(self, fit: dict[str, Any]) -> None:
        self._fit = fit
        if self._registered:
            self._extras._put(STANDING, {**self.heard, "fit": fit})
