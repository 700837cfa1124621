"""Keep the steps that each job has reported, and predict how fast the job would be at other sizes.

The same code hears live jobs and a simulator's tables. A model is fitted anew only when a job reports a step that the
model does not predict. Owns: the facts of each job, bounded. Does not own: the models' formulas, nor the decisions made
by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from edl.cluster.analyzer.predicted import Batches, MeasuredSteps, Noise, Predicted, StepModel, fit
from edl.cluster.views import Guess, Speed
from edl.errors import ConfigError

KINDS: Final = 64  # kinds of steps kept of one job: the ones least lately reported are forgotten
RECENT: Final = 0.3  # weight of the newest report of a kind in its running mean
NEWS: Final = 0.02  # a kind that has moved by less than this share is no reason to fit anew
STIRRED: Final = 0.05  # gradient noise that has moved by less than this share is no reason to predict anew


class StepKind(msgspec.Struct, frozen=True):
    """The configuration that a step was made with."""

    workers: int
    nodes: int
    samples: int


@dataclass(slots=True)
class Facts:
    """The reports of one job, and the model fitted to them."""

    batches: Batches
    steps: dict[StepKind, tuple[float, float]] = field(default_factory=dict)  # ln of a pass and of a step, in seconds
    # the values that the model was fitted with
    fitted: dict[StepKind, tuple[float, float]] = field(default_factory=dict)
    noise: Noise | None = None
    model: StepModel | None = None
    speed: Predicted | None = None


class Analyzer:
    """Fit a speed model to each job of a cluster."""

    def __init__(self) -> None:
        self._jobs: dict[str, Facts] = {}

    def expect(self, job: str, batches: Batches) -> None:
        """Accept reports of a job from now on."""
        self._jobs[job] = Facts(batches)

    def forget(self, job: str) -> None:
        self._jobs.pop(job, None)

    def observe(  # noqa: PLR0913, PLR0917 - what one report says
        self,
        job: str,
        workers: int,
        nodes: int,
        batch: int,
        step_s: float,
        sync_s: float = 0.0,
        grad_sqr: float | None = None,
        grad_var: float | None = None,
    ) -> None:
        """Record a step of one pass with `batch` samples a worker: it took `step_s`, of which it waited `sync_s` for
        peers.
        """
        facts = self._jobs[job]
        if not (0 <= sync_s < step_s < math.inf and 1 <= nodes <= workers and batch >= 1):
            raise ConfigError(
                f"{job} reports a step that cannot be: {workers} workers on {nodes} nodes, {batch} samples each, "
                f"{step_s} s of which {sync_s} s waiting; report seconds above 0"
            )
        kind, told = StepKind(workers, nodes, batch), (math.log(step_s - sync_s), math.log(step_s))
        before = facts.steps.pop(kind, told)
        facts.steps[kind] = (before[0] + RECENT * (told[0] - before[0]), before[1] + RECENT * (told[1] - before[1]))
        while len(facts.steps) > KINDS:
            del facts.steps[next(iter(facts.steps))]
        if grad_sqr is not None and grad_var is not None and grad_sqr >= 0 and grad_var >= 0:
            facts.noise = Noise(grad_sqr, grad_var)
        self._note(facts, kind)

    def speed(self, job: str) -> Speed:
        facts = self._jobs[job]
        if not facts.steps:
            return Guess(max(facts.batches.own, facts.batches.smallest))
        if facts.model is None:
            facts.fitted = dict(facts.steps)
            facts.model = fit(_measured(facts.steps))
            facts.speed = None
        if facts.speed is None:
            tried = frozenset((kind.workers, kind.nodes) for kind in facts.steps)
            facts.speed = Predicted(facts.batches, facts.model, facts.noise, tried)
        return facts.speed

    def _note(self, facts: Facts, kind: StepKind) -> None:
        """Drop the model, or only the prediction, if the report contradicts it."""
        known = facts.fitted.get(kind)
        now = facts.steps[kind]
        if known is None or max(abs(now[0] - known[0]), abs(now[1] - known[1])) > NEWS:
            facts.model = facts.speed = None
        elif facts.speed is not None and not facts.speed.holds(facts.noise, STIRRED):
            facts.speed = None


def _measured(steps: dict[StepKind, tuple[float, float]]) -> MeasuredSteps:
    kinds = sorted(steps, key=lambda kind: (kind.workers, kind.nodes, kind.samples))
    told = np.array([steps[kind] for kind in kinds])
    where = np.array([(kind.workers, kind.nodes, kind.samples) for kind in kinds], dtype=float)
    return MeasuredSteps(where[:, 0], where[:, 1], where[:, 2], told[:, 0], told[:, 1])
