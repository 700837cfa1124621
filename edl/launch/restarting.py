"""Whether `edl run` begins a job again that has ended: a pure decision, from how its lives have ended so far.

A life that ended for a machine's reason, or a script's, may end otherwise the next time. It is tried as often as
`--max-restarts` allows, from the newest checkpoint. It is not where the same failure has come twice with no progress
between: no step that no life had made before, and no newer checkpoint. Then it would come a third time.

Owns: which end is followed by another life, and what is said of one that is not. Does not own: which checkpoint the
next life begins with (`edl.checkpoints.lives`), nor crashed workers that are replaced in a life
(`edl.launch.supervision`): they are counted together with lives.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from edl.launch.verdicts import EndKind, LaunchVerdict
from edl.protocol.saving import PREEMPTED_CODE


class Prospects(NamedTuple):
    """Of a job that has ended so."""

    again: bool
    why: str


PROSPECTS: Final = {
    EndKind.FINISHED: Prospects(False, "nothing is left to train"),
    EndKind.PREEMPTED: Prospects(False, "its machine is to be left"),
    EndKind.INTERRUPTED: Prospects(False, "it was ended by hand"),
    EndKind.STOPPED: Prospects(False, "it was ended by hand"),
    EndKind.DIVERGED: Prospects(False, "what differs may be in its checkpoints too"),
    EndKind.REFUSED: Prospects(False, "the same line would be refused again"),
    EndKind.SPENT: Prospects(False, "nothing is left to train"),
    EndKind.KILLED: Prospects(True, "a host or its memory may do better the next time"),
    EndKind.CRASHED: Prospects(True, "a device, a file or a network may have failed"),
    EndKind.LOST: Prospects(True, "hosts may come back"),
}
PLAIN: Final = frozenset({EndKind.INTERRUPTED, EndKind.STOPPED, EndKind.SPENT, EndKind.REFUSED})  # no word of why
NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")
AT_ITS_START: Final = {  # no life of it has made a step: then a script is wrong, as a rule, and not a machine
    EndKind.CRASHED: "a script that fails before its first step would do so again",
    EndKind.LOST: "it had made no step yet, and would fail so again",
}


class LifeEnd(msgspec.Struct, frozen=True):
    """How one life ended. Steps are those of all lives together."""

    verdict: LaunchVerdict
    began: int  # after this step
    step: int  # the newest that any worker was known to have made
    cause: str = ""  # how the first worker ended that the job lost at last; empty: it does not say
    saved: int = 0  # of the newest checkpoint there is; 0: none
    restarts: int = 0  # that are left
    to_go: bool = False  # it was asked to go while it lived, or after


class Again(msgspec.Struct, frozen=True):
    """Another life begins."""

    reason: str  # how the one before has ended
    restarts: int  # left for it, and for its workers


class Enough(msgspec.Struct, frozen=True):
    """None does."""

    verdict: LaunchVerdict


class Restarting:
    """Of one `edl run`. `allowed`: what --max-restarts says."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._step = 0  # the newest of all lives that have ended
        self._saved = 0  # the newest checkpoint when the last one had ended
        self._lives = 0
        self._trained = False  # some life made a step
        self._failures: set[str] = set()  # since the last progress

    def ends(self, end: LifeEnd) -> LaunchVerdict | None:
        """The verdict where no other life follows, whatever is saved. None: `decide` once that is known."""
        verdict = end.verdict
        if verdict.state != "failed":
            return verdict
        if not self._is_worth(end):
            return _with(verdict, self._why_not(verdict))
        if end.to_go:
            return _preempted(verdict)
        return None if end.restarts else _with(verdict, self._used_up())

    def decide(self, end: LifeEnd) -> Again | Enough:
        """A life has ended. Call it once for each."""
        verdict = self.ends(end)
        if verdict is not None:
            return Enough(verdict)
        repeats = self._repeats(end)
        self._note(end)
        if not repeats:
            return Again(end.verdict.reason, end.restarts - 1)
        said = f"it had failed so before, and nothing beyond step {end.step} was trained or saved in between"
        return Enough(_with(end.verdict, f"{said}, so it is not begun again"))

    def _is_worth(self, end: LifeEnd) -> bool:
        kind = end.verdict.kind
        at_start = kind in AT_ITS_START and end.step <= end.began and not self._trained
        return PROSPECTS[kind].again and not at_start

    def _used_up(self) -> str:
        return f"--max-restarts {self._allowed} is used up" if self._allowed else ""

    def _why_not(self, verdict: LaunchVerdict) -> str:
        if verdict.kind in PLAIN or not self._allowed:
            return ""
        why = AT_ITS_START.get(verdict.kind, PROSPECTS[verdict.kind].why)
        return f"it is not begun again: {why}"

    def _repeats(self, end: LifeEnd) -> bool:
        return not self._is_progress(end) and _sign(end) in self._failures

    def _is_progress(self, end: LifeEnd) -> bool:
        return not self._lives or end.step > self._step or end.saved > self._saved

    def _note(self, end: LifeEnd) -> None:
        if self._is_progress(end):
            self._failures.clear()
        self._failures.add(_sign(end))
        self._lives += 1
        self._trained = self._trained or end.step > end.began
        self._step, self._saved = max(self._step, end.step), max(self._saved, end.saved)


def _sign(end: LifeEnd) -> str:
    """By which two failures are the same: what a worker has ended by, but for numbers and addresses. What is said of
    the job names workers, and these are others in each life.
    """
    verdict = end.verdict
    return NUMBER.sub("#", end.cause) if end.cause else f"{verdict.kind} {verdict.exits}"


def _with(verdict: LaunchVerdict, more: str) -> LaunchVerdict:
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; {more}") if more else verdict


def _preempted(verdict: LaunchVerdict) -> LaunchVerdict:
    reason = f"before it was saved once more, {verdict.reason}; what was durable before has to do"
    return LaunchVerdict(PREEMPTED_CODE, "preempted", reason, kind=EndKind.PREEMPTED)
