"""The tree of errors: who is at fault decides the class, and the message names the remedy.

Owns: every exception that may cross a layer. Does not own: how one is shown (`edl.cli`) or survived (`edl.trainer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

FAULT: Final = "an error that is no broken ring: "  # begins what a RingFault says


class EdlError(Exception):
    """Anything that edl raises on purpose."""


class ConfigError(EdlError):
    """A setting, a flag or this machine is wrong; the caller mends it and starts again."""


class UsageError(EdlError, ValueError):
    """The script calls edl wrongly; the message names the call, the argument and the remedy. A ValueError too, which
    Horovod and PyTorch raise for such a call.
    """


class DataError(EdlError):
    """A file of the source is gone, cut off, changed or corrupt; the message names it, the place in it and the host."""


class CheckpointError(EdlError):
    """A checkpoint cannot be written, read or trusted; the message names it, what is wrong with it and what to do."""


class NotResumed(CheckpointError):
    """What was saved does not go with this script, or cannot be read; where the script was says nothing about that."""


class ForeignCheckpoint(NotResumed):
    """It does not go with this script: another worker of the same line would find the same."""


class PeerError(EdlError):
    """The other side misbehaved or is gone; nothing here is wrong."""


class CollectiveFailed(EdlError, RuntimeError):
    """A collective has no result. Scripts of Horovod's know it as HorovodInternalError."""


class RingBroken(PeerError, CollectiveFailed):
    """A collective or the forming of a ring failed: the mini-batch in flight is void (I8)."""


class CollectiveRefused(UsageError, CollectiveFailed):
    """The workers' scripts call a collective with other types, shapes or arguments, or other collectives, or one that
    there is not. The message names both sides, all of them raise it, and the ring stands.
    """


class RingFault(RingBroken):
    """A ring that is on trial has raised what is no broken ring. It counts as broken, and its newcomers are at fault
    before those who trained without them (`edl.core.switch.unfit`).
    """

    @classmethod
    def of(cls, error: BaseException) -> RingFault:
        """Make a fault of an `error`, in one line, by which the job's leader knows it."""
        said = (str(error).splitlines() or [""])[0]
        return cls(f"{FAULT}{type(error).__name__}{': ' if said else ''}{said}")


class StoreUnavailable(EdlError):
    """The coordinator did not answer in time. Retry; the operation may have been carried out all the same."""


class Fenced(EdlError):
    """A write was refused because this leader's reign is over (I1). Step down."""


class JobFailed(EdlError):
    """The job cannot go on; the message is the reason that `edl status` shows too."""


class NoSuchJob(JobFailed):
    """No worker has ever joined a job of that name there."""


class FunctionFailed(JobFailed):
    """A job of `edl.run` has failed; where its function has raised, the message ends with the worker's traceback."""


class TimedOut(EdlError, TimeoutError):
    """What was waited for did not happen in time. It may still."""


class ScaleRejected(EdlError):
    """A request for another size, host or batch that cannot be met, now or later; the reason names the remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidTransition(EdlError):
    """Our bug: a machine got an event that its state does not allow. Carries the story that led there."""

    def __init__(self, state: object, event: object, history: Sequence[object] = ()) -> None:
        story = "".join(f"\n  {entry!r}" for entry in history)
        super().__init__(f"{event!r} is not allowed in state {state!r}; what came before:{story or ' nothing'}")
        self.state = state
        self.event = event
        self.history = tuple(history)


BRIEF: Final = 160  # characters
WITH_ITS_JOB: Final = "edl: this worker ends with its job: "  # begins its last line


def told_of_its_job(error: JobFailed) -> str:
    """The line with which a worker ends as its job does, or came too late for it: no fault is where its script is."""
    return f"{WITH_ITS_JOB}{' '.join(str(error).split())}\n"


def in_brief(text: str) -> str:
    """Put into one line, cut where it is too long to be read inside of another line, what a script's exception says,
    whose traceback is shown in full elsewhere.
    """
    line = " ".join(text.split())
    return line if len(line) <= BRIEF else f"{line[: BRIEF - 1]}…"


def said_of(error: Exception) -> str:
    """An error in one line of a report: one that was not written for people, with its kind."""
    return str(error) if isinstance(error, EdlError | OSError) else f"{type(error).__name__}: {error}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return what the line about an unknown word ends in: the known one that is nearest to it, or nothing."""
    from difflib import get_close_matches  # only here: most processes never need it

    near = get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""
