"""The tree of errors: who is at fault decides the class, and the message names the remedy.

Owns: every exception that may cross a layer. Does not own: how one is shown (`edl.cli`) or survived (`edl.trainer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

FAULT: Final = "an error that is no broken ring: "  # the beginning of a RingFault's message


class EdlError(Exception):
    """Base class of every error that edl raises on purpose.

    >>> try:
    ...     raise StoreUnavailable("zk1:2181 did not answer")  # as edl does
    ... except EdlError as error:
    ...     print(error)
    zk1:2181 did not answer
    """


class ConfigError(EdlError):
    """A setting, a flag or this machine is wrong; the caller mends it and starts again.

    >>> from edl.client import Job
    >>> try:
    ...     Job("mnist", coordinator="zk1:many")
    ... except ConfigError as error:
    ...     print(str(error).split(":")[0])
    coordinator='zk1
    """


class UsageError(EdlError, ValueError):
    """The script calls edl wrongly; the message names the call, the argument and the remedy. It is a ValueError too,
    because Horovod and PyTorch raise ValueError for such a call.

    >>> import edl
    >>> try:
    ...     edl.run("train")
    ... except UsageError:
    ...     print("edl.run takes a function")
    edl.run takes a function
    """


class DataError(EdlError):
    """A file of the source is gone, cut off, changed or corrupt; the message names it, the place in it and the host.

    >>> issubclass(DataError, EdlError)
    True
    """


class CheckpointError(EdlError):
    """A checkpoint cannot be written, read or trusted; the message names it, what is wrong with it and what to do.

    >>> issubclass(CheckpointError, EdlError)
    True
    """


class NotResumed(CheckpointError):
    """A saved state does not fit this script, or cannot be read. The script's traceback would tell
    nothing about that.

    >>> issubclass(NotResumed, EdlError)
    True
    """


class ForeignCheckpoint(NotResumed):
    """The checkpoint belongs to another script: every worker of the same command line would find that.

    >>> issubclass(ForeignCheckpoint, NotResumed)
    True
    """


class PeerError(EdlError):
    """The other side misbehaved or is gone; nothing here is wrong.

    >>> issubclass(PeerError, EdlError)
    True
    """


class CollectiveFailed(EdlError, RuntimeError):
    """A collective has no result. Scripts written for Horovod know this error as HorovodInternalError.

    >>> CollectiveFailed.__mro__[1].__name__  # a script of Horovod's catches it as hvd.HorovodInternalError
    'EdlError'
    """


class RingBroken(PeerError, CollectiveFailed):
    """A collective or the forming of a ring failed: the mini-batch in flight is void (I8).

    >>> issubclass(RingBroken, CollectiveFailed)
    True
    """


class CollectiveRefused(UsageError, CollectiveFailed):
    """The workers' scripts call a collective with different types, shapes or arguments, or call different or unknown
    collectives. The message names both sides, every worker raises it, and the ring stays usable.

    >>> issubclass(CollectiveRefused, CollectiveFailed)
    True
    """


class RingFault(RingBroken):
    """A ring on trial has raised an error that is not RingBroken. The ring counts as broken, and its newcomers are
    blamed before the workers that had trained without them (`edl.core.switch.ring_blame`).

    >>> isinstance(RingFault.of(ValueError("bad shape")), RingBroken)
    True
    """

    @classmethod
    def of(cls, error: BaseException) -> RingFault:
        """Make a RingFault of any `error`, in one line whose beginning (`FAULT`) the job's leader recognizes."""
        said = (str(error).splitlines() or [""])[0]
        return cls(f"{FAULT}{type(error).__name__}{': ' if said else ''}{said}")


class StoreUnavailable(EdlError):
    """The coordinator did not answer in time. Retry; the operation may have been carried out nevertheless.

    >>> issubclass(StoreUnavailable, EdlError)
    True
    """


class Fenced(EdlError):
    """A write was refused because this leader's term is over (I1). Step down.

    >>> issubclass(Fenced, EdlError)
    True
    """


class JobFailed(EdlError):
    """The job cannot go on; the message is the reason that `edl status` shows too.

    >>> issubclass(NoSuchJob, JobFailed) and issubclass(FunctionFailed, JobFailed)
    True
    """


class NoSuchJob(JobFailed):
    """The job is unknown at this coordinator: no worker has ever joined it.

    >>> from edl.client import Job
    >>> try:
    ...     Job("no-such-job")
    ... except EdlError as error:
    ...     print(type(error).__name__)
    ConfigError
    """


class FunctionFailed(JobFailed):
    """A job of `edl.run` has failed; if its function raised, the message ends with the worker's traceback.

    >>> issubclass(FunctionFailed, JobFailed)
    True
    """


class TimedOut(EdlError, TimeoutError):
    """The awaited condition did not come true in time. It may still do so later.

    >>> issubclass(TimedOut, TimeoutError)  # so it is caught as Python's own
    True
    """


class ScaleRejected(EdlError):
    """A request for another size, host or batch that can be met neither now nor later; the reason names the remedy.

    >>> ScaleRejected("the job has --max-np 4").reason
    'the job has --max-np 4'
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidTransition(EdlError):
    """A machine got an event that its state does not allow: a bug of edl. The message has the
    history that led there.

    >>> InvalidTransition("training", "BatchEnded").history
    ()
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

    >>> print(told_of_its_job(JobFailed("no worker is left")), end="")
    edl: this worker ends with its job: no worker is left
    """
    return f"{WITH_ITS_JOB}{' '.join(str(error).split())}\n"


def in_brief(text: str) -> str:
    """Join the text of a script's exception into one line of at most `BRIEF` characters, to be quoted inside another
    line. The full traceback is shown elsewhere.

    >>> in_brief("shapes differ:    (2, 3)")
    'shapes differ: (2, 3)'
    """
    line = " ".join(text.split())
    return line if len(line) <= BRIEF else f"{line[: BRIEF - 1]}…"


def said_of(error: Exception) -> str:
    """Describe an error in one line of a report; add the exception's class unless its message was
    written for people.

    >>> said_of(ValueError("bad shape"))
    'ValueError: bad shape'
    """
    return str(error) if isinstance(error, EdlError | OSError) else f"{type(error).__name__}: {error}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of the error line about an unknown word: a suggestion of the nearest known word, or "" if none is
    near.

    >>> did_you_mean("statu", ["status", "stop"])
    ': did you mean status?'
    """
    from difflib import get_close_matches  # only here: most processes never need it

    near = get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""
