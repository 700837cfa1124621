"""What a stand-in does about its trainer: a pure decision from what has happened.

horovodrun's driver takes the stand-in's end for the worker's, and goes by these rules: one that ends while it is
counted makes an end of the job at the next recount, if it ends well, or of its host, if it does not. So a stand-in
ends only when its slot is freed, when the job is over, or when it is told to.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.protocol.saving import PREEMPTED_CODE

TERMINATED = 143  # as of a process that SIGTERM has ended: the job was not finished by it
UNKNOWN_S = 30.0  # how long a job that cannot be asked is waited for
GRACE_S = 3.0  # how long after a word to end the job's end is waited for; the driver kills after 5 s


@dataclass(frozen=True, slots=True)
class TrainerEnded:
    """With this exit status; below 0 by that signal."""

    status: int


@dataclass(frozen=True, slots=True)
class JobAtEnd:
    """Asked for after the trainer's end."""

    over: bool
    finished: bool
    reason: str = ""
    done: bool = False  # the trainer told it of a good end
    spent: bool = False  # all is trained that was to be: a trainer that is started now comes too late
    going: bool = False  # it was asked to go: no trainer is started any more
    resumable: bool = False  # it is gone, and can be gone on with


@dataclass(frozen=True, slots=True)
class JobUnknown:
    """There is no leader to ask."""


@dataclass(frozen=True, slots=True)
class Freed:
    """The driver does not count this slot any more."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    """A SIGTERM, or on another host the end of ssh, of a driver that lives: it gives up this host, or the job."""


@dataclass(frozen=True, slots=True)
class DriverGone:
    """horovodrun was killed; the workers finish the job."""


Happening = TrainerEnded | JobAtEnd | JobUnknown | Freed | EndAsked | DriverGone


@dataclass(frozen=True, slots=True)
class StartTrainer:
    """Another one in the place of the one that crashed."""


@dataclass(frozen=True, slots=True)
class EndTrainer:
    """Let it leave the job."""


@dataclass(frozen=True, slots=True)
class Say:
    """To the user."""

    line: str


Command = StartTrainer | EndTrainer | Say


class Post:
    """One slot's. `status` is the exit status once the stand-in may end."""

    def __init__(self, restarts: int) -> None:
        self.status: int | None = None
        self._restarts = restarts
        self._ended: int | None = None  # the trainer's exit status
        self._freed = False
        self._told_to_end: float | None = None  # at this time
        self._alone = False  # without a driver
        self._unknown_since: float | None = None
        self._gave_up = False

    @property
    def looks(self) -> bool:
        """The trainer has ended, and it depends on the job what follows."""
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
            case _:  # looks that were overtaken
                pass
        return []

    def _on_end_asked(self, now: float) -> list[Command]:
        self._told_to_end = now if self._told_to_end is None else self._told_to_end
        if self._ended is None:
            return [EndTrainer()]
        if self.looks:  # a good end is no success of the job: the same signal may have made the trainer leave
            self.status = _code(self._ended) or None
        return []

    def _waited_in_vain(self, now: float) -> bool:
        """Of a trainer that ended well, and a driver that gave up its slot or the job."""
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
            pass  # no other trainer can make up for its end: the job's tells whether it matters
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
