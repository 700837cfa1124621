"""How a wrong rule is tried: in jobs that nothing is wrong with while the rule is right, until one of them complains.

Owns: what the tests of wrong rules have in common, and jobs that several of them play.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from edl.core.worker.worker_states import TrainerState
from edl.errors import InvalidTransition, UsageError
from edl.protocol.data_nouns import DataSpec
from tests.model import Moment, Planned, SimFault, SimJob, Violation
from tests.model.model_checkpoints import Savings
from tests.model.model_launcher import SimLauncher
from tests.model.model_worker import SimWorker

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]  # replaces one rule in the real code by a wrong one
Play = Callable[[int], SimJob]  # the job of a seed


def expect_noticed(mutant: Mutant, play: Play, names: set[str], seeds: int, patch: Patch) -> None:
    """What is complained of first, within so many jobs, is one of those named."""
    _is_right(play)
    mutant(patch)
    story = _first_complaint(play, seeds)
    assert story, f"{seeds} jobs, and no check noticed"
    assert story.partition(":")[0] in names, story


@cache
def _is_right(play: Play) -> None:
    """As it is, nothing is wrong with it."""
    play(0).run()


def later(play: Play, by: int) -> Play:
    """The same jobs from another seed on: those before notice nothing, and take their time."""
    return lambda seed: play(seed + by)


def _first_complaint(play: Play, seeds: int) -> str:
    for seed in range(seeds):
        try:
            play(seed).run()
        except Violation as violation:
            return str(violation)
        except (InvalidTransition, UsageError):  # a machine noticed before the checks did
            continue
    return ""


def full(seed: int) -> SimJob:
    """It has as many workers as it may have, and one more comes."""
    job = SimJob(DataSpec(total=400, epochs=1, batch=2), seed=seed, workers=2, maximum=2)
    job.plan([Planned(SimFault.JOIN, 0.05)])
    return job


class Prompt(SimJob):
    """No message is late."""

    late = 0.0


class Calm(Prompt):
    """Nor does anything go wrong with the store."""

    @property
    def savings(self) -> Savings:
        return self._savings

    @savings.setter
    def savings(self, savings: Savings) -> None:
        savings.fails = False
        self._savings = savings


class UnevenLauncher(SimLauncher):
    def start(self, host: str = "") -> None:
        super().start(host)
        worker = list(self.job.workers.values())[-1]
        worker.ahead = 9 if len(self.job.workers) % 2 else 1


class ReadsUnevenly(SimJob):
    """One pipeline reads a few steps ahead, others do not."""

    launcher_class = UnevenLauncher


class LosesTheNewest(SimJob):
    """The only worker that has applied the newest step dies as the others copy its state."""

    def happens(self, moment: Moment, worker: SimWorker | None = None) -> None:
        if moment is Moment.FORMING and self.struck[SimFault.KILL] == 1:
            ring = [one for one in self.workers.values() if one.doing is TrainerState.ENTERING]
            newest = max(one.step for one in ring)
            ahead = [one for one in ring if one.step == newest]
            if len(ahead) == 1 < len(ring):
                self.inflict(SimFault.KILL, ahead[0])
        super().happens(moment, worker)
