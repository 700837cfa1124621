"""Classify the end of a worker: the cause, whose domain it is, and whether another try can end otherwise.

Evidence: the exit status or signal, the last lines of its output, the machine's counter of processes killed for want of
memory, whether an agent saw it end, and the report of the system that runs it, such as Slurm. A worker that was told to
end has no cause. The leader of a job may know more than its workers' ends tell (`TOLD_BY_LEADERS`).

A failed job is tried again by one rule in a cluster and in `edl run`; each counts its own budget. Progress refills it,
and the same fault is not tried a third time.

Owns: the table of causes, what an exit status says, and that rule.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum
from typing import Final

import msgspec

from edl.control_characters import visible
from edl.errors import WITH_ITS_JOB
from edl.protocol.checkpoint_record import PREEMPTED_CODE
from edl.protocol.record import FailedBy

TAIL_BYTES: Final = 8192  # bytes of a worker's last output that are examined
ROOT_LENGTH: Final = 200
SHELLS: Final = 128  # a shell reports a command that signal n has killed as exit status 128 + n


class Domain(StrEnum):
    """The party that can mend a failure."""

    WORKLOAD = "workload"  # the job's owner: the script, its arguments, what it needs
    INFRASTRUCTURE = "infrastructure"  # the machine, the network, people: the same script may do well elsewhere
    DATA = "data"  # who keeps the data


class EndEvidence(msgspec.Struct, frozen=True):
    code: int | None = None  # its exit status, -n where signal n has ended it; None: no agent has seen it end
    tail: str = ""  # its last output
    starved: bool = False  # the machine has killed a process for want of memory meanwhile
    refused: str = ""  # why the worker could not be started at all
    told: bool = False  # the worker was told to end
    unserved: bool = False  # the machine could not do its part in starting the worker, whatever the command
    taken: str = ""  # why the system that runs the worker, such as Slurm, has taken it or its node away

    @property
    def longest(self) -> int:
        """Count the letters of the longest of its texts."""
        return max(len(self.tail), len(self.refused), len(self.taken))

    def cut(self, most: int) -> EndEvidence:
        """Keep so many letters of each text: the last that were printed, the first of reasons."""
        tail = self.tail[max(0, len(self.tail) - most) :]
        return msgspec.structs.replace(self, tail=tail, refused=self.refused[:most], taken=self.taken[:most])


class EndCause(msgspec.Struct, frozen=True):
    code: str  # a word that programs may match
    domain: Domain
    retry: bool  # another try may end otherwise
    words: str  # for the job's owner
    root: str = ""  # the detail that distinguishes two failures of one kind: the last line of a traceback
    # the end of another worker, the coordinator or its machine caused this one: no failure of its own
    follows: bool = False


W, I, D = Domain.WORKLOAD, Domain.INFRASTRUCTURE, Domain.DATA  # noqa: E741 - a table's columns
STOPPED: Final = EndCause("stopped", W, retry=False, words="it was stopped")
DIVERGED: Final = EndCause("diverged", W, retry=False, words="its workers differ")
REFUSED: Final = EndCause("wrong-use", W, retry=False, words="it does not go together")
TOLD_BY_LEADERS: Final = {FailedBy.STOP: STOPPED, FailedBy.DIVERGENCE: DIVERGED, FailedBy.REFUSAL: REFUSED}
# Causes of exceptions: patterns of "Type: message", as the last line of a traceback shows it. The first match counts.
EXCEPTIONS: Final[tuple[tuple[str, str, Domain, bool, str], ...]] = tuple(
    ("|".join(patterns), code, domain, retry, words)
    for patterns, code, domain, retry, words in (
        (("Disk quota exceeded",), "disk-quota", W, True, "its user's disk quota is used up"),
        (("No space left on device",), "full-disk", I, True, "a disk is full"),
        (("Address already in use",), "port-in-use", I, True, "a port that it needs is in use"),
        (
            ("CUDA out of memory", r"\bOutOfMemoryError\b", "ResourceExhaustedError", "^MemoryError",
             "Unable to allocate"),
            "out-of-memory", W, False, "it needs more memory than there is",
        ),
        (("device-side assert",), "script-error", W, False, "its script failed on the device"),
        (
            ("NCCL", "CUDA error", "uncorrectable ECC", "CUDNN_STATUS", "cudaError"),
            "device", I, True, "a device or its link failed",
        ),
        (
            ("Too many open files", "can't start new thread", "Resource temporarily unavailable",
             "Cannot allocate memory"),
            "host-limits", I, True, "the machine has no more memory, files, threads or processes to give",
        ),
        (
            ("Input/output error", "Stale file handle", "Read-only file system"),
            "storage", I, True, "a file system failed",
        ),
        (("(ModuleNotFound|Import)Error",), "bad-import", W, False, "a module that its script imports is not there"),
        (("(Syntax|Indentation|Tab)Error",), "script-error", W, False, "its script is no Python"),
        (
            (r"(ForeignCheckpoint|NotResumed)\b",),
            "checkpoint", W, False, "its checkpoint does not go with its script",
        ),
        (("CheckpointError",), "checkpoint", D, False, "its checkpoint cannot be written or read"),
        (
            ("DataError", "BadZipFile", "BadGzipFile", "UnpicklingError", "JSONDecodeError", "UnicodeDecodeError",
             "DataLossError", r"^zlib\.error", "^EOFError", "ArrowInvalid", r"^_?csv\.Error", "LZMAError",
             "UnidentifiedImageError", "[Cc]orrupt", "truncated"),
            "corrupt-data", D, False, "its data cannot be read as what it should be",
        ),
        (
            ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "No such file or directory"),
            "missing-file", D, False, "a file is not where it should be",
        ),
        (("PermissionError", "AccessDenied"), "no-permission", W, False, "it may not do what it tries"),
        (
            (r"(RingBroken|PeerError|JobFailed|StoreUnavailable|Fenced|HorovodInternalError)\b",),
            "peer", I, True, "another worker or the coordinator was gone",
        ),
        (
            ("(ConnectionError|ConnectionReset|ConnectionRefused|ConnectionAborted|BrokenPipe|gaierror|TimeoutError)",
             "URLError", "HTTPError", "SSLError", "RemoteDisconnected", "Name or service not known",
             "Temporary failure in name resolution", "Network is unreachable", "timed out"),
            "network", I, True, "something that it reaches over the network was away",
        ),
        (
            ("FloatingPointError", r"\b(nan|NaN|NaNs)\b", "not finite", "non-finite"),
            "not-a-number", W, False, "its loss is no number",
        ),
        (("(ConfigError|UsageError)",), "wrong-use", W, False, "it was started or written wrongly"),
        (("KeyboardInterrupt",), "ended", I, True, "a person has ended it"),
    )
)  # fmt: skip
CRASHES: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
LIMITS: Final = {signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS}
EXCEPTION: Final = re.compile(r"^(?:\S+ )?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Broken|Failed|Unavailable|"
                              r"Fenced|Checkpoint|Resumed|BadZipFile|BadGzipFile|Warning)|zlib\.error|"
                              r"[a-z_][\w.]*\.[A-Z]\w*)(?::|$)")  # fmt: skip


def classify(known: EndEvidence) -> EndCause | None:
    """Return the cause of an end; None if it ended well or was told to end."""
    cause = _cause(known)
    return cause and msgspec.structs.replace(cause, root=visible(cause.root[:ROOT_LENGTH]))


def _cause(known: EndEvidence) -> EndCause | None:
    if known.told or (known.code in {0, PREEMPTED_CODE} and not known.taken):
        return None
    if known.refused:
        return _not_started(known)
    if known.taken or known.code is None:
        return _vanished(known)
    raised = raised_last(known.tail)
    number = signal_of(known.code)
    if number is not None:
        return _by_signal(number, raised, starved=known.starved)
    return _raised(raised) if raised else _exited(known.code, known.tail)


def first(causes: Iterable[EndCause]) -> EndCause | None:
    """Return the first cause that is no consequence of another, of causes in the order of the ends."""
    found = list(causes)
    return next((cause for cause in found if not cause.follows), found[0] if found else None)


def raised_last(tail: str) -> str:
    """Return the exception that a traceback ends with as `Type: message`, or "" if there is none. A worker whose job
    has failed reports that in a line instead.
    """
    told = [line for line in tail.splitlines() if line.startswith(WITH_ITS_JOB)]
    if told:
        return f"JobFailed: {told[-1].removeprefix(WITH_ITS_JOB)}"[:ROOT_LENGTH]
    _, is_one, rest = tail.rpartition("Traceback (most recent call last):")
    if not is_one:
        found = [line for line in tail.splitlines() if re.match(r"(Syntax|Indentation|Tab)Error: ", line)]
        return found[-1][:ROOT_LENGTH] if found else ""
    for line in rest.splitlines():
        if line and not line[0].isspace() and EXCEPTION.match(line):
            return line.strip()[:ROOT_LENGTH]
    return ""


def _raised(line: str) -> EndCause:
    for pattern, code, domain, retry, words in EXCEPTIONS:
        if re.search(pattern, line):
            return EndCause(code, domain, retry, words, line, follows=code == "peer")
    return EndCause("script-error", W, retry=False, words="its script raised an exception", root=line)


def _not_started(known: EndEvidence) -> EndCause:
    refused = known.refused
    if known.unserved or re.search(r"Resource temporarily|Cannot allocate|Too many open|No space left", refused):
        return EndCause("host-limits", I, True, "the machine could not start it", refused)
    return EndCause("no-command", W, retry=False, words="its command cannot be started", root=refused)


def _vanished(known: EndEvidence) -> EndCause:
    if known.taken:
        return EndCause("taken", I, retry=True, words="its machine was taken away", root=known.taken, follows=True)
    return EndCause("lost", I, retry=True, words="it vanished, and no agent has seen it end")


def _by_signal(number: int, raised: str, *, starved: bool) -> EndCause:
    name = signal_name(number)
    if number == signal.SIGKILL and starved:
        return EndCause("out-of-memory", W, True, "the machine has killed it for want of memory", name)
    if number == signal.SIGKILL:
        return EndCause("killed", I, True, "it was killed from outside", name)
    if number in CRASHES:
        return EndCause("crash", W, True, f"native code crashed ({name})", raised or name)
    if number in LIMITS:
        return EndCause("limit", W, False, f"it went beyond a limit of its own ({name})", name)
    return EndCause("ended", I, True, f"it was ended from outside ({name})", name)


def _exited(code: int, tail: str) -> EndCause:
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")
    if code in {126, 127}:
        return EndCause("no-command", W, False, "its command cannot be started", last)
    if code == 2 and re.search(r"^usage: |error: ", tail, re.MULTILINE):
        return EndCause("wrong-arguments", W, False, "its arguments are wrong", last)
    if code == 2 and "can't open file" in tail:
        return EndCause("no-command", W, False, "its script is not there", last)
    for pattern, named, domain, retry, words in EXCEPTIONS[:8]:  # about the machine: programs of all kinds print these
        if re.search(pattern, last):
            return EndCause(named, domain, retry, words, last)
    return EndCause("exit", W, True, f"it exited with code {code}", f"code {code}: {last}")


def signal_of(code: int) -> int | None:
    """Return the signal that ended a process with this exit status; None: it exited by itself."""
    if code < 0:
        return -code
    number = code - SHELLS
    return number if number > 0 and number in signal.valid_signals() else None


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def describe_exit(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


KEPT: Final = 10  # strikes kept of one job
NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|(?<![0-9])(?<!^code )[0-9]+")  # not the exit status that a root begins with


class RetryRules(msgspec.Struct, frozen=True):
    tries: int = 3  # failures without progress in between
    spare: int = 10  # the same for failures that the machines are to blame for
    progress: int = 10  # steps after which the budget is full again
    rest_s: float = 1.0  # rest after the first failure; twice as long after each further one
    longest_rest_s: float = 60.0


class FailureKept(msgspec.Struct, frozen=True):
    code: str
    root: str
    step: int
    at: float = 0.0
    life: int = 0
    made: int = 0  # workers that the job had had by then: if one of these fails at that step too, it is one failure

    @property
    def fault(self) -> tuple[str, str, int]:
        """Return what two failures of one fault have in common: numbers and addresses differ in each life."""
        return self.code, NUMBER.sub("#", self.root), self.step


class Denial(Enum):
    HOPELESS = "another try would end alike"
    REPEATED = "the same fault came again without progress in between"
    SPENT = "the budget is used up"


def denied(cause: EndCause, failure: FailureKept, since: Sequence[FailureKept], left: int) -> Denial | None:
    """Return why no try follows a failure; None: another one does. `since`: the failures since the last progress;
    `left`: tries that would be left after the next.
    """
    if not cause.retry:
        return Denial.HOPELESS
    if cause.domain is not Domain.INFRASTRUCTURE and failure.fault in {one.fault for one in since}:
        return Denial.REPEATED
    return Denial.SPENT if left < 0 else None
