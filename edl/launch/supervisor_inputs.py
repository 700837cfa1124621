"""Inputs and commands of the machine behind `edl run`.

Owns: the inputs and the commands of `edl.launch.supervisor`, as values, and upper bounds, in seconds, of the end of a
launch and of its workers. Does not own: what follows from an input, nor
who carries a command out (`edl.launch.local_launch`).
"""

from __future__ import annotations

import msgspec

from edl.protocol.record import FailedBy

END_GRACE_S = 5.0  # between TERM and KILL, as horovodrun's
GO_GRACE_S = 2.0  # for the workers of a job that is preempted to end by themselves, before TERM
TELL_GRACE_S = 1.0  # for a leader to take it that the job is interrupted, before TERM
KILL_GRACE_S = 5.0  # a process that outlives KILL for so long hangs in the kernel: give up on it


class EndTimeouts(msgspec.Struct, frozen=True):
    doubt_s: float  # for a leader to notice that a worker is gone, and for the others to go on without it
    settle_s: float  # for daemons to end after their trainers, and for workers to end after their job

    @classmethod
    def of(cls, session_timeout_s: float, step_timeout_s: float) -> EndTimeouts:
        # The dead worker may have been the leader: the next leader may come after a whole session time-out, and only
        # then finds that the worker is gone. A ring may take two step time-outs to form without it.
        return cls(
            doubt_s=2 * (session_timeout_s + step_timeout_s),
            settle_s=step_timeout_s + 2 * session_timeout_s,  # PyTorch alone takes a second of a core to end
        )


# ------------------------------------------------------------------------------------------------- what happened


class WorkerExited(msgspec.Struct, frozen=True):
    """The process of a worker ended."""

    slot: int
    code: int  # as of subprocess: negative for a signal


class WorkerStarted(msgspec.Struct, frozen=True):
    """A worker was started by `StartWorkers`."""

    slot: int
    pid: int


class JobSeen(msgspec.Struct, frozen=True):
    """The job as its leader shows it. It comes again and again; only the last one counts."""

    state: str
    reason: str = ""
    ranks: dict[int, int] = {}  # pid of each trainer of this machine in the roster -> its rank
    size: int = 0
    target: int = 0  # workers asked for
    members: int = 0  # workers that are in the job to stay, booting ones too
    pids: frozenset[int] = frozenset()  # trainers of this machine that the job knows
    done: frozenset[int] = frozenset()  # those of them that told it of a good end
    spent: bool = False  # all is trained that was to be: a worker that is started now comes too late
    short: str = ""  # why the job cannot train on until more workers come
    minimum: int = 1  # workers that it needs
    migration: int = 0  # its number, while all workers of some host are to leave it
    awaited: int = 0  # workers that are to be started on this machine for that
    failed_by: FailedBy = FailedBy.FAULT
    resumed: str = ""  # the checkpoint that it goes on from
    base: int = 0  # the step of that
    ring: str = ""  # what gradients are averaged by
    unsaved: str = ""  # why its newest checkpoint came to nothing, unless a later one is durable
    asked_more: int = 0  # workers that requests have added to the target so far; it only grows


class OwnChoice(msgspec.Struct, frozen=True):
    """The checkpoint that this line chose for the job to resume from."""

    path: str
    step: int


class JobSilent(msgspec.Struct, frozen=True):
    """The end of all that this launch has started, after which no more can be learnt about the job."""


class Looked(msgspec.Struct, frozen=True):
    """`LookAtJob` is done. `JobSeen` came before this, if there is a job at all."""


class JobTold(msgspec.Struct, frozen=True):
    """`StopJob` is done: the leader has agreed, or does not answer."""


class Interrupted(msgspec.Struct, frozen=True):
    """Ctrl-C, or a request to end."""


class AskedToGo(msgspec.Struct, frozen=True):
    """Request to leave this machine: the job is saved and ends, so that it can be resumed."""


class DeadlineReached(msgspec.Struct, frozen=True): ...


Ending = JobTold | Interrupted | AskedToGo | DeadlineReached
Happening = WorkerExited | WorkerStarted | JobSeen | JobSilent | Looked | Ending


# ---------------------------------------------------------------------------------------------------- what to do


class EndWorkers(msgspec.Struct, frozen=True):
    """Ask all workers that are left to end."""


class KillWorkers(msgspec.Struct, frozen=True):
    """Kill all workers that are left."""


class StartWorkers(msgspec.Struct, frozen=True):
    """Start more workers, `replacing` of them for crashed ones; the others are those for which the job was asked."""

    number: int
    replacing: int = 0


class LookAtJob(msgspec.Struct, frozen=True):
    """Report the job as it is now, then `Looked`."""


class StopJob(msgspec.Struct, frozen=True):
    """Ask the leader to end the job for this reason, as its coordinator ends with us. Then report `JobTold`."""

    reason: str
    others: frozenset[int]  # pids of trainers that others started


class PreemptJob(msgspec.Struct, frozen=True): ...


class AskForLastWord(msgspec.Struct, frozen=True):
    """Report `JobSeen` with a final state, or `JobSilent` when all processes of the launch are gone."""


Command = EndWorkers | KillWorkers | StartWorkers | StopJob | PreemptJob | LookAtJob | AskForLastWord
