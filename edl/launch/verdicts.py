"""How one life of a job has ended under `edl run`: the values that its launcher decides by."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from edl.protocol.job import FailedBy
from edl.protocol.saving import PREEMPTED_CODE

SHELLS = 128  # a shell says of a command that signal n has killed: it exited with 128 + n
SIGNALS = 65


class EndKind(StrEnum):
    """Of which kind an end is. What follows from it: `edl.launch.restarting`."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"  # Ctrl-C here
    STOPPED = "stopped"  # its leader was told to end it
    DIVERGED = "diverged"  # its workers were found to differ
    REFUSED = "refused"  # what it was started with does not go together
    SPENT = "spent"  # it had finished, and then a worker did not end well
    KILLED = "killed"  # a signal has ended a worker: want of memory, a host, a crash of native code
    CRASHED = "crashed"  # a worker's script failed
    LOST = "lost"  # too few workers are left, or none says anything more


class LaunchVerdict(msgspec.Struct, frozen=True):
    """How the launch ended."""

    code: int
    state: str  # for the record: finished, failed or preempted
    reason: str = ""
    note: str = ""  # worth a line although nothing failed
    kind: EndKind = EndKind.LOST
    exits: str = ""  # how the first worker that failed has ended, without its number


NOT_BEGUN = LaunchVerdict(PREEMPTED_CODE, "preempted", "it had not begun to train", kind=EndKind.PREEMPTED)
INTERRUPTED = LaunchVerdict(1, "failed", "interrupted", kind=EndKind.INTERRUPTED)
BY_THE_JOB = {
    FailedBy.STOP: EndKind.STOPPED,
    FailedBy.DIVERGENCE: EndKind.DIVERGED,
    FailedBy.REFUSAL: EndKind.REFUSED,
}


def kind_of_failure(failed_by: FailedBy, codes: Iterable[int]) -> EndKind:
    """What its leader says comes first. One worker's death makes others fail: so a signal among `codes`, the exit
    statuses of those that failed, counts more than an exception.
    """
    kind = BY_THE_JOB.get(failed_by)
    if kind is not None:
        return kind
    known = list(codes)
    if any(map(_by_signal, known)):
        return EndKind.KILLED
    return EndKind.CRASHED if known else EndKind.LOST


def _by_signal(code: int) -> bool:
    return code < 0 or SHELLS < code < SHELLS + SIGNALS


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
