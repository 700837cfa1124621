"""Judge how the lives of a job have ended under `edl run`, and whether another one follows: pure decisions.

A life that ended for a machine's reason, or a script's, may end otherwise the next time. It is tried as often as
`--max-restarts` allows, from the newest checkpoint, by the rule that clusters have too
(`edl.cluster.queue.end_causes`). Progress is a step that no life had made before, or a newer checkpoint. It does not
refill the budget.

Owns: which end is followed by another life, and what is said of one that is not. Does not own: which checkpoint the
next life begins with (`edl.checkpoints.resume_choice`), nor crashed workers that are replaced in a life
(`edl.launch.supervisor`): they are counted together with lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from edl.cluster.queue.end_causes import (
    DIVERGED,
    STOPPED,
    TOLD_BY_LEADERS,
    Denial,
    Domain,
    EndCause,
    FailureKept,
    denied,
    signal_of,
)
from edl.protocol.checkpoint_record import PREEMPTED_CODE
from edl.protocol.record import FailedBy

# All are the user's to mend, as the machine is: the same failure may not come twice.
KILLED: Final = EndCause("killed", Domain.WORKLOAD, retry=True, words="a signal has ended a worker")
CRASHED: Final = EndCause("crashed", Domain.WORKLOAD, retry=True, words="a worker's script failed")
LOST: Final = EndCause("lost", Domain.WORKLOAD, retry=True, words="too few workers are left, or none says anything")
SPENT: Final = EndCause("spent", Domain.WORKLOAD, retry=False, words="it had finished, and then a worker failed")
WHY_NOT: Final = {  # said where the reason of the failure does not tell it already
    DIVERGED: "what differs may be in its checkpoints too",
    # Where no life has made a step a script is wrong, as a rule, and not a machine.
    CRASHED: "a script that fails before its first step would do so again",
    LOST: "it had made no step yet, and would fail so again",
}


class LaunchVerdict(msgspec.Struct, frozen=True):
    code: int
    state: str  # for the record: finished, failed or preempted
    reason: str = ""
    note: str = ""  # worth a line although nothing failed
    cause: EndCause | None = None  # of a failure
    exits: str = ""  # how the first worker that failed has ended, without its number


NOT_BEGUN = LaunchVerdict(PREEMPTED_CODE, "preempted", "it had not begun to train")
INTERRUPTED = LaunchVerdict(1, "failed", "interrupted", cause=STOPPED)


def cause_of_failure(failed_by: FailedBy, codes: Iterable[int]) -> EndCause:
    """Return what the job's leader says; else the worst of `codes`, the exit statuses of workers that failed. One
    worker's death makes others fail, so a signal counts more than an exception.
    """
    told, known = TOLD_BY_LEADERS.get(failed_by), list(codes)
    if told is not None or not known:
        return told or LOST
    return CRASHED if all(signal_of(code) is None for code in known) else KILLED


class LifeEnd(msgspec.Struct, frozen=True):
    """The end of one life. Steps are those of all lives together."""

    verdict: LaunchVerdict
    began: int  # after this step
    step: int  # the newest that any worker was known to have made
    cause: str = ""  # how the first worker ended that the job lost at last; empty: it does not say
    saved: int = 0  # of the newest checkpoint there is; 0: none
    restarts: int = 0  # that are left
    to_go: bool = False  # it was asked to go while it lived, or after


class Again(msgspec.Struct, frozen=True):
    """The verdict that another life begins."""

    reason: str  # how the one before has ended
    restarts: int  # left for it, and for its workers


class Enough(msgspec.Struct, frozen=True):
    """The verdict that no other life begins."""

    verdict: LaunchVerdict


class RestartRule:
    """The lives of one `edl run`. `allowed`: what --max-restarts says."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._step = 0  # the newest of all lives that have ended
        self._saved = 0  # the newest checkpoint when the last one had ended
        self._trained = False  # some life made a step
        self._failures: tuple[FailureKept, ...] = ()  # since the last progress

    def ends(self, end: LifeEnd) -> LaunchVerdict | None:
        """Return the verdict where no other life follows, whatever is saved; None: `decide` once that is known."""
        decided = self._judge(end, ())
        return decided.verdict if isinstance(decided, Enough) else None

    def decide(self, end: LifeEnd) -> Again | Enough:
        """Call it once for each life that has ended."""
        self._step = max(self._step, end.step)
        since = () if end.saved > self._saved else self._failures
        decided = self._judge(end, since)
        self._failures = (*since, self._failure(end))
        self._trained = self._trained or end.step > end.began
        self._saved = max(self._saved, end.saved)
        return decided

    def _judge(self, end: LifeEnd, since: tuple[FailureKept, ...]) -> Again | Enough:
        verdict = end.verdict
        if verdict.cause is None:
            return Enough(verdict)
        at_start = verdict.cause in {CRASHED, LOST} and end.step <= end.began and not self._trained
        cause = msgspec.structs.replace(verdict.cause, retry=verdict.cause.retry and not at_start)
        denial = denied(cause, self._failure(end), since, end.restarts - 1)
        if denial is not Denial.HOPELESS and end.to_go:
            return Enough(_preempted(verdict))
        if denial is None:
            return Again(verdict.reason, end.restarts - 1)
        return Enough(msgspec.structs.replace(verdict, reason=self._reason(denial, end)))

    def _reason(self, denial: Denial, end: LifeEnd) -> str:
        assert end.verdict.cause is not None
        why = WHY_NOT.get(end.verdict.cause, "")
        words = {
            Denial.HOPELESS: why and f"; it is not begun again: {why}",
            Denial.SPENT: f"; --max-restarts {self._allowed} is used up",
            Denial.REPEATED: f"; it had failed so before, and nothing beyond step {end.step} was trained or saved in "
            "between, so it is not begun again",
        }
        return end.verdict.reason + (words[denial] if self._allowed else "")

    def _failure(self, end: LifeEnd) -> FailureKept:
        """Return what tells failures apart: what a worker ended by, since the job's own reason names workers, and these
        are others in each life.
        """
        code = "" if end.cause or end.verdict.cause is None else f"{end.verdict.cause.code} {end.verdict.exits}"
        return FailureKept(code, end.cause, self._step)


def _preempted(verdict: LaunchVerdict) -> LaunchVerdict:
    reason = f"before it was saved once more, {verdict.reason}; what was durable before has to do"
    return LaunchVerdict(PREEMPTED_CODE, "preempted", reason)
