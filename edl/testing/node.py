"""The simulated coordinator, as a job's leaders know it: the record's node, behind the fence of the newest term.

Owns: which write is carried out, and which answer is lost on its way. Does not own: what follows from that
(`edl.core.job.writing`).
"""

from __future__ import annotations

import random
from enum import Enum
from typing import TYPE_CHECKING, Final

from edl.core.job.inputs import Tell
from edl.core.job.writing import (
    Commit,
    Conflicted,
    Deposed,
    ForgetSecret,
    Forgotten,
    Found,
    Look,
    Outcome,
    Unanswered,
    Written,
)

if TYPE_CHECKING:
    from edl.testing.simulation import SimJob

LOST: Final = 0.02  # of the calls get no answer
LATE_S: Final = 0.25  # a call that is lost may be carried out so much later


class LostCall(Enum):
    """Fates of a call that gets no answer."""

    UNSENT = "never carried out"
    UNANSWERED = "carried out at once"
    LATE = "carried out later"


class RecordNode:
    def __init__(self, job: SimJob, seed: int) -> None:
        self.version = 0
        self.has_secret = True
        self.lost = LOST
        self.unanswered = 0  # calls so far
        self.away_until = 0.0
        self._job = job
        self._fates = random.Random(f"answers {seed}")  # noqa: S311 - repeatable is the point

    @property
    def is_away(self) -> bool:
        return self._job.now < self.away_until

    def arrives(self, commit: Commit, term: int) -> Outcome:
        match self._fate():
            case None:
                return self.commit(commit, term)
            case LostCall.UNSENT:
                pass
            case LostCall.UNANSWERED:
                self.commit(commit, term)
            case LostCall.LATE:
                self._job.after(LATE_S * self._fates.random(), self.commit, commit, term)
        return Unanswered()

    def commit(self, commit: Commit, term: int) -> Outcome:
        job = self._job
        if term != job.term:  # the fence of its reign (I1)
            return Deposed()
        if commit.version != self.version:
            return Conflicted()
        before, self.version = job.durable, self.version + 1
        self._note(commit.told)
        if commit.record is not before:
            job.migrations.told(commit.told)
            job.make_durable(commit.record)
            job.checks.records.told(before, commit.record, commit.told)
            job.checks.savings.told(commit.told)
        return Written(self.version)

    def _note(self, told: tuple[Tell, ...]) -> None:
        self._job.checks.writing.written(told)

    def asked(self, command: Look | ForgetSecret, term: int) -> Outcome:
        """Return the outcome when the leader looks at the version that lies there, or has the secret removed."""
        if self._fate() is not None:
            return Unanswered()
        if isinstance(command, ForgetSecret):
            self.has_secret = False
            return Forgotten()
        return Found(self.version) if term == self._job.term else Deposed()

    def _fate(self) -> LostCall | None:
        """Draw a lost call's fate; None: it is answered. Where no message is late, no answer is lost."""
        if self.is_away:
            return LostCall.UNSENT
        if not self._job.late or self._fates.random() >= self.lost:
            return None
        fate = self._fates.choice(tuple(LostCall))
        self.unanswered += 1
        self._job.note(f"the coordinator's answer is lost: {fate.value}")
        return fate
