"""The simulated coordinator, as a job's leaders know it: the record's node, behind the fence of the newest term.

Owns: which write is carried out, and which answer is lost on its way. Does not own: what follows from that
(`tests.model.model_leader`).
"""

from __future__ import annotations

import contextlib
import random
from enum import Enum
from typing import TYPE_CHECKING, Final

from edl.core.job.commit import Commit, ForgetSecret, Forgotten, InStore, Outcome, Written
from edl.core.job.leader_inputs import Tell
from edl.errors import Fenced, StoreUnavailable

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

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
        self.unanswered = 0  # calls: after each the leader takes over anew, and excuses the newest ring
        self.away_until = self.was_away_s = 0.0
        self._job = job
        self._fates = random.Random(f"answers {seed}")

    @property
    def is_away(self) -> bool:
        return self._job.now < self.away_until

    def receives(self, command: InStore, term: int) -> Outcome:
        """Carry out a leader's command. Raises StoreUnavailable if the answer is lost, Fenced if the term is over."""
        match self._fate():
            case None:
                return self._carry_out(command, term)
            case LostCall.UNSENT:
                pass
            case LostCall.UNANSWERED:
                self.late(command, term)
            case LostCall.LATE:
                self._job.after(LATE_S * self._fates.random(), self.late, command, term)
        self.unanswered += 1
        raise StoreUnavailable("no answer")

    def late(self, command: InStore, term: int) -> None:
        """Carry out a command if it still counts; no leader hears of the outcome."""
        with contextlib.suppress(Fenced):
            self._carry_out(command, term)

    def _carry_out(self, command: InStore, term: int) -> Outcome:
        if isinstance(command, ForgetSecret):
            self.has_secret = False
            return Forgotten()
        return self._commit(command, term)

    def _commit(self, commit: Commit, term: int) -> Outcome:
        job = self._job
        if term != job.term:  # the fence of its reign (I1)
            raise Fenced(f"term {term}")
        if commit.version != self.version:
            job.checks.violated("I1", f"version {self.version} is on record, and the leader knows {commit.version}")
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

    def _fate(self) -> LostCall | None:
        """Draw a lost call's fate; None: it is answered. Where no message is late, no answer is lost."""
        if self.is_away:
            return LostCall.UNSENT
        if not self._job.late or self._fates.random() >= self.lost:
            return None
        fate = self._fates.choice(tuple(LostCall))
        self._job.note(f"the coordinator's answer is lost: {fate.value}")
        return fate
