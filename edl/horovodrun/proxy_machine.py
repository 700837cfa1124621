"""Decide how a stand-in reacts to its trainer, the job and the driver: a pure machine.

horovodrun's driver takes the stand-in's end for the worker's, by these rules: if a stand-in ends while it is counted,
the next recount ends the job if it has ended well, and gives up its host if not. So a stand-in ends only when its slot
is freed, when the job is over, or when it is told to.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.protocol.checkpoint_record import PREEMPTED_CODE

TERMINATED = 143  # exit status of a process that SIGTERM has ended: the job has not finished
UNKNOWN_S = 30.0  # how long to wait for a job that cannot be asked
GRACE_S = 3.0  # how long to wait for the job's end after a request to end; the driver kills after 5 s


@dataclass(frozen=True, slots=True)
class TrainerEnded:
    """The trainer has ended with this exit status; below 0: by that signal."""

    status: int


@dataclass(frozen=True, slots=True)
class JobAtEnd:
    """The job's status, read after the trainer's end."""

    over: bool
    finished: bool
    reason: str = ""
    done: bool = False  # the trainer has reported a good end to the job
    spent: bool = False  # all data is trained: a trainer that is started now comes too late
    going: bool = False  # the job is being preempted: no trainer is started any more
    resumable: bool = False  # the job has ended, and can be resumed


@dataclass(frozen=True, slots=True)
class JobUnknown:
    """The job has no leader that answers."""


@dataclass(frozen=True, slots=True)
class Freed:
    """The driver has freed this slot."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    """A SIGTERM, or on another host the end of ssh, of a driver that lives: the driver gives up this host, or the
    job.
    """


@dataclass(frozen=True, slots=True)
class DriverGone:
    """The driver was killed; the workers finish the job."""


Happening = TrainerEnded | JobAtEnd | JobUnknown | Freed | EndAsked | DriverGone


@dataclass(frozen=True, slots=True)
class StartTrainer:
    """Start another trainer in the place of the crashed one."""


@dataclass(frozen=True, slots=True)
class EndTrainer:
    """Let the trainer leave the job."""


@dataclass(frozen=True, slots=True)
class Say:
    """Print a line for the user."""

    line: str


Command = StartTrainer | EndTrainer | Say


class ProxyMachine:
    """The rules of one slot. `status` is the exit status once the stand-in may end."""

    def __init__(self, restarts: int) -> None:
        self.status: int | None = None
        self._restarts = restarts
        self._ended: int | None = None  # the trainer's exit status
        self._freed = False
        self._told_to_end: float | None = None  # when the stand-in was told to end
        self._alone = False  # the driver is gone
        self._unknown_since: float | None = None
        self._gave_up = False

    @property
    def looks(self) -> bool:
        """Tell whether the trainer has ended and the job's status decides how to go on."""
        return self._ended is not None and self.status is None

    def handle(self, happened: Happening, now: float) -> list[Command]:
        match happened:
            case TrainerEnded(status):
                self._ended, self._unknown_since = status, None
                if self._freed:  # at once: the driver may give the slot anew
                    self.status = 0
                elif self._told_to_end is not None:
                    self.status = _code(status) or None
            case JobAtEnd() if self.looks:
                self._unknown_since = None
                return self._on_job(happened, now)
            case JobUnknown() if self.looks:
                self._unknown_since = now if self._unknown_since is None else self._unknown_since
                if now - self._unknown_since >= UNKNOWN_S:
                    self.status = _code(self._ended or 0)
                elif self._waited_in_vain(now):
                    self.status = TERMINATED
            case Freed():
                self._freed = True
            case EndAsked():
                return self._on_end_asked(now)
            case DriverGone():
                self._alone = True
            case _:  # answers that were overtaken
                pass
        return []

    def _on_end_asked(self, now: float) -> list[Command]:
        self._told_to_end = now if self._told_to_end is None else self._told_to_end
        if self._ended is None:
            return [EndTrainer()]
        # a good end of the trainer is no success of the job: the same signal may have made the trainer leave
        if self.looks:
            self.status = _code(self._ended) or None
        return []

    def _waited_in_vain(self, now: float) -> bool:
        """Tell whether the job's end came not in time, after a good end of the trainer and a request to end."""
        return self._told_to_end is not None and now - self._told_to_end >= GRACE_S

    def _on_job(self, job: JobAtEnd, now: float) -> list[Command]:
        ended = self._ended or 0
        if job.over and job.resumable:
            self.status = PREEMPTED_CODE
            return [Say(f"the job is preempted: {job.reason}")]
        if job.over and not job.finished:
            self.status = _code(ended) or 1
            return [Say(f"the job failed: {job.reason}")]
        if job.over or self._freed or (self._alone and not ended):
            self.status = _code(ended) if job.over and job.done else 0
        elif self._told_to_end is not None:  # the trainer ended well, and its slot gets no other
            self.status = TERMINATED if self._waited_in_vain(now) else None
        elif ended and (job.done or job.spent or job.going):
            pass  # no other trainer can make up for its end: the job's own end tells whether it matters
        elif ended and self._restarts > 0:
            self._restarts -= 1
            self._ended = None
            return [Say(f"the worker ended with {_how(ended)}: starting another in its place"), StartTrainer()]
        elif ended and not self._gave_up:
            self._gave_up = True
            return [Say(f"the worker ended with {_how(ended)}, once too often (--max-restarts): its slot stays empty")]
        return []


def _code(status: int) -> int:
    return 128 - status if status < 0 else status


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
