"""The tree of errors: who is at fault decides the class, and the message names the remedy.

Owns: every exception that may cross a layer. Does not own: how one is shown (`edl.cli`) or survived (`edl.trainer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

FAULT: Final = "an error that is no broken ring: "  # the beginning of a RingFault's message


class EdlError(Exception):
    """Base class of every error that edl raises on purpose."""


class ConfigError(EdlError):
    """A setting, a flag or this machine is wrong; the caller mends it and starts again."""


class UsageError(EdlError, ValueError):
    """The script calls edl wrongly; the message names the call, the argument and the remedy. It is a ValueError too,
    because Horovod and PyTorch raise ValueError for such a call.
    """


class DataError(EdlError):
    """A file of the source is gone, cut off, changed or corrupt; the message names it, the place in it and the host."""


class CheckpointError(EdlError):
    """A checkpoint cannot be written, read or trusted; the message names it, what is wrong with it and what to do."""


class NotResumed(CheckpointError):
    """A saved state does not fit this script, or cannot be read. The script's traceback would tell
    nothing about that.
    """


class ForeignCheckpoint(NotResumed):
    """The checkpoint belongs to another script: every worker of the same command line would find that."""


class PeerError(EdlError):
    """The other side misbehaved or is gone; nothing here is wrong."""


class CollectiveFailed(EdlError, RuntimeError):
    """A collective has no result. Scripts written for Horovod know this error as HorovodInternalError."""


class RingBroken(PeerError, CollectiveFailed):
    """A collective or the forming of a ring failed: the mini-batch in flight is void (I8)."""


class CollectiveRefused(UsageError, CollectiveFailed):
    """The workers' scripts call a collective with different types, shapes or arguments, or call different or unknown
    collectives. The message names both sides, every worker raises it, and the ring stays usable.
    """


class RingFault(RingBroken):
    """A ring on trial has raised an error that is not RingBroken. The ring counts as broken, and its newcomers are
    blamed before the workers that had trained without them (`edl.core.switch.ring_blame`).
    """

    @classmethod
    def of(cls, error: BaseException) -> RingFault:
        """Make a RingFault of any `error`, in one line whose beginning (`FAULT`) the job's leader recognizes."""
        said = (str(error).splitlines() or [""])[0]
        return cls(f"{FAULT}{type(error).__name__}{': ' if said else ''}{said}")


class StoreUnavailable(EdlError):
    """The coordinator did not answer in time. Retry; the operation may have been carried out nevertheless."""


class Fenced(EdlError):
    """A write was refused because this leader's term is over (I1). Step down."""


class JobFailed(EdlError):
    """The job cannot go on; the message is the reason that `edl status` shows too."""


class NoSuchJob(JobFailed):
    """The job is unknown at this coordinator: no worker has ever joined it."""


class FunctionFailed(JobFailed):
    """A job of `edl.run` has failed; if its function raised, the message ends with the worker's traceback."""


class TimedOut(EdlError, TimeoutError):
    """The awaited condition did not come true in time. It may still do so later."""


class ScaleRejected(EdlError):
    """A request for another size, host or batch that can be met neither now nor later; the reason names the remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidTransition(EdlError):
    """A machine got an event that its state does not allow: a bug of edl. The message has the
    history that led there.
    """

    def __init__(self, state: object, event: object, history: Sequence[object] = ()) -> None:
        story = "".join(f"\n  {entry!r}" for entry in history)
        super().__init__(f"{event!r} is not allowed in state {state!r}; what came before:{story or ' nothing'}")
        self.state = state
        self.event = event
        self.history = tuple(history)


BRIEF: Final = 160  # characters
WITH_ITS_JOB: Final = "edl: this worker ends with its job: "  # begins its last line


def told_of_its_job(error: JobFailed) -> str:
    """Return the last line of a worker that ends because its job has ended, or that came after the job's end. The line
    tells a reader that the worker's own script has no fault.
    """
    return f"{WITH_ITS_JOB}{' '.join(str(error).split())}\n"


def in_brief(text: str) -> str:
    """Join the text of a script's exception into one line of at most `BRIEF` characters, to be quoted inside another
    line. The full traceback is shown elsewhere.
    """
    line = " ".join(text.split())
    return line if len(line) <= BRIEF else f"{line[: BRIEF - 1]}…"


def said_of(error: Exception) -> str:
    """Describe an error in one line of a report; add the exception's class unless its message was
    written for people.
    """
    return str(error) if isinstance(error, EdlError | OSError) else f"{type(error).__name__}: {error}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of the error line about an unknown word: a suggestion of the nearest known word, or "" if none is
    near.
    """
    from difflib import get_close_matches  # only here: most processes never need it

    near = get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""
