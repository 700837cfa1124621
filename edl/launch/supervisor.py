"""Decisions of `edl run` about its workers: a pure machine that gets events and the time.

Owns: how many workers are started for those that crashed or are asked for, when the others are ended after a failure or
a signal, how long each of them may take, and the verdict on the job. Does not own: processes, signals, clocks, and who
is in the ring (the job's leader decides that).

    WATCHING --a worker crashed--> DOUBTING --the job runs, and goes on without it--> WATCHING
       |                                                         |
       |--all exited----> SETTLING --the job's last word-----> ENDED
       |
       |--preempted----> LEAVING --its grace is over--v
       |                                             |
       '--interrupt, failed-----------------------> ENDING --grace is over--> KILLING --all gone, or no hope--> ENDED
                                                     ^
                          DOUBTING --the job does not--'
"""

from __future__ import annotations

import signal
from enum import Enum

import msgspec

from edl.cluster.queue.end_causes import REFUSED, describe_exit, signal_of
from edl.errors import InvalidTransition
from edl.launch.life_outcome import INTERRUPTED, LOST, NOT_BEGUN, SPENT, LaunchVerdict, cause_of_failure
from edl.protocol.checkpoint_record import PREEMPTED_CODE
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


class KillWorkers(msgspec.Struct, frozen=True): ...


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


class Stage(Enum):
    WATCHING = "all workers run, or have finished"
    DOUBTING = "a worker crashed; the leader may go on without it"
    SETTLING = "all workers exited; the job's last word is awaited"
    LEAVING = "the job is preempted, and its workers end by themselves"
    ENDING = "workers were asked to end"
    KILLING = "workers were killed"
    ENDED = "nothing is left to do"


NEVER_JOINED = (
    "its workers ended without calling edl.init(), so each of them has run by itself: call it first in the script, or "
    "edl.prepare()"
)
GOING = frozenset({Stage.LEAVING, Stage.ENDING, Stage.KILLING})
BEGINNING = frozenset({"starting", "resuming"})
RUNNING = frozenset({"running", "scaling", "preempting"})
OVER = frozenset({"finished", "failed", "preempted"})


class Supervisor:
    """Supervise one launch. Only `handle` changes it; `deadline` says when to send `DeadlineReached`."""

    def __init__(
        self,
        workers: dict[int, int],
        limits: EndTimeouts,
        *,
        hosts: bool = False,
        restarts: int = 0,
        waits: bool = False,
        chosen: OwnChoice | None = None,
    ) -> None:
        """`hosts`: the job's coordinator ends with this launch, so this must not end before the job.

        `restarts`: at most so many crashed workers are replaced. `waits`: the job may be moved to this machine,
        repeatedly, until it is over. `chosen`: the checkpoint from which this line expects the job to resume.
        """
        self.phase = Stage.WATCHING
        self.deadline: float | None = None
        self.verdict: LaunchVerdict | None = None
        self._pids = dict(workers)  # slot -> pid of the trainers that are running
        self._ours = set(workers.values())  # pids of all that were ever started
        self._hosts = hosts
        self.restarts = restarts  # that are left
        self._waits = waits
        self._chosen = chosen  # None: it has turned out to be so, or it does not matter
        self._moving = 0  # the number of the newest migration that workers were started for
        self._moved = 0  # so many, besides those that take the place of crashed ones
        self._room = 0  # of so many that are to come here
        self._crashes = 0  # for which no worker was started, and may yet be
        self._gone: dict[int, str] = {}  # crashed trainers, by pid, that the job may go on without, and how they ended
        self._doubt = ""  # the first crash that the leader has not gone on from yet
        self._short_until: float | None = None  # so long workers that a job of too few has lost may take to exit
        self._codes: list[int] = []  # exit statuses of those that crashed since the job went on last
        self._job = JobSeen("starting")
        self._limits = limits
        self._target = len(workers)
        self._asked_more: int | None = None  # None: the job was not seen yet
        self._arrived: set[int] = set()  # pids that the job has known: a worker that is not known any more has left it
        self._going = False  # the job was asked to go
        self._telling = False  # its leader is told first that it ends, else it says that its workers were told to leave
        self._history: list[Happening] = []

    @property
    def starts_workers(self) -> bool:
        """Tell whether `StartWorkers` may yet come."""
        return self.phase in {Stage.WATCHING, Stage.DOUBTING}

    def handle(self, happening: Happening, now: float) -> list[Command]:
        self._history.append(happening)
        del self._history[:-20]
        commands: list[Command] = []
        if self.phase is Stage.ENDED:
            return commands
        match happening:
            case WorkerExited():
                commands = self._exited(happening, now)
            case WorkerStarted(slot, pid):
                self._pids[slot] = pid
                self._ours.add(pid)
            case JobSeen():
                commands = self._seen(happening, now)
            case JobSilent():
                commands = self._silent()
            case Looked():
                commands = self._looked(now)
            case JobTold():
                commands = self._told(now)
            case Interrupted():
                commands = self._interrupted(now)
            case AskedToGo():
                commands = self._to_go(now)
            case DeadlineReached():
                commands = self._timed_out(now)
        return commands

    # ---------------------------------------------------------------------------------------------- happenings

    def _exited(self, exit_: WorkerExited, now: float) -> list[Command]:
        if exit_.slot not in self._pids:
            raise InvalidTransition(self.phase, exit_, self._history)
        pid = self._pids.pop(exit_.slot)
        if self.phase in GOING:
            self._note_own_end(exit_.code)
            return [] if self._pids else self._end()
        if exit_.code == 0 or self._came_too_late(pid):
            if self._only_latecomers():
                return self._end_latecomers(now)
            return [] if self._goes_on() else self._settle(now)
        return self._crashed(pid, exit_, now)

    def _note_own_end(self, code: int) -> None:
        # The job may be known to have failed before the end of the worker whose failure it is.
        told = self.phase is Stage.KILLING or code == 0 or signal_of(code) == signal.SIGTERM
        if not told and self.verdict is not None and self.verdict.cause == LOST:
            self._codes.append(code)
            self.verdict = self._failed(self.verdict.reason)

    def _came_too_late(self, pid: int) -> bool:
        # The exit code of such a worker says that the job had finished before the worker was in it: that is no failure.
        return self._job.state == "finished" and pid not in self._arrived

    def _only_latecomers(self) -> bool:
        # The job is finished, and a worker that runs still was on its way into it.
        return self._job.state == "finished" and bool(self._pids) and not self._job.ranks.keys() & self._pids.values()

    def _end_latecomers(self, now: float) -> list[Command]:
        self.verdict = self._finished()
        self.phase, self.deadline = Stage.ENDING, now + END_GRACE_S
        return [EndWorkers()]

    def _crashed(self, pid: int, exit_: WorkerExited, now: float) -> list[Command]:
        reason = f"worker {exit_.slot} {describe_exit(exit_.code)}"
        self._gone[pid] = reason
        self._crashes += 1
        if self._job.state in RUNNING and pid not in self._arrived and self._goes_on():
            return []  # the job goes on without it, which may have come to know it since
        self._codes.append(exit_.code)
        if self._job.state in {"failed", "preempted"}:
            failed = self._job.state == "failed"
            return self._fail(self._job.reason or self._doubt or reason, now) if failed else self._leave(now)
        if not self._goes_on():  # the job may know better what it failed for
            self._doubt = self._doubt or reason
            return self._settle(now)
        if self._job.state == "finished":
            return []
        if self.phase is Stage.DOUBTING:  # the first crash is the reason, and its deadline stands
            return []
        self.phase, self.deadline, self._doubt = Stage.DOUBTING, now + self._limits.doubt_s, reason
        return [] if self._job.state in RUNNING else [LookAtJob()]  # it may run by now

    def _goes_on(self) -> bool:
        """Tell whether our workers are left or may come, or others' workers need the coordinator that we started."""
        if self._pids or (self._waits and self._job.state not in OVER):
            return True
        return self._job.state in RUNNING and bool(self._guests())

    def _guests(self) -> frozenset[int]:
        """Return the trainers that others started and that need our coordinator."""
        return self._job.pids - self._ours if self._hosts else frozenset()

    def _looked(self, now: float) -> list[Command]:
        if self._going and self.phase not in GOING:
            return [PreemptJob()] if self._job.state in RUNNING else self._go_unsaved(now)
        doubtful = self.phase is Stage.DOUBTING and self._job.state not in RUNNING
        return self._fail(self._doubt, now) if doubtful else []

    def _seen(self, job: JobSeen, now: float) -> list[Command]:
        before, self._job = self._job, job
        self._arrived |= job.pids
        if not job.short:
            self._short_until = None
        if self.phase in GOING:
            return []
        if job.state == "failed":
            return self._fail(job.reason or self._doubt or "its leader gave no reason", now)
        if job.state == "preempted":
            return self._leave(now)
        if self.phase is Stage.SETTLING:
            return self._end(self._finished()) if job.state == "finished" else []
        if (refused := self._begun_otherwise(job)) is not None:
            return self._fail(refused.reason, now, refused)
        return self._follow(before, now)

    def _follow(self, before: JobSeen, now: float) -> list[Command]:
        """Follow a job that goes on, as do its workers."""
        job = self._job
        knows_the_dead = (job.pids - job.done).isdisjoint(self._gone)
        goes_on = job.state in RUNNING and job.size and knows_the_dead
        if self.phase is Stage.DOUBTING and goes_on:
            self.phase, self.deadline, self._doubt = Stage.WATCHING, None, ""
            self._codes.clear()
        elif not self._goes_on():
            return self._settle(now)
        elif self._only_latecomers() and not self._job.ranks.keys().isdisjoint(self._ours):
            # Those of its workers that were here have exited before the job was seen to be finished.
            return self._end_latecomers(now)
        elif job.state == "finished" and before.state != "finished":
            self.phase, self.deadline = Stage.WATCHING, now + self._limits.settle_s
        # Asked for more before it began: it begins with all of them. At another's coordinator others may start them.
        larger = job.state in BEGINNING and self._hosts and job.target > self._target
        grows = job.state in RUNNING and job.state != "preempting"
        due = (grows or larger) and self.phase is Stage.WATCHING and knows_the_dead
        return self._replenish(job, now) if due else []

    def _begun_otherwise(self, job: JobSeen) -> LaunchVerdict | None:
        """Return a failure if the job was begun from an older checkpoint than this line chose.

        Lines that begin a job together may choose different checkpoints; the job takes the first worker's. A line that
        chose an older one goes along. With a newer one it refuses: the training up to that checkpoint would be lost.
        """
        chosen = self._chosen
        if chosen is None or not job.members:  # no worker is in it yet
            return None
        self._chosen = None
        if job.base >= chosen.step:
            return None
        began = f"from step {job.base}, {job.resumed}" if job.resumed else "at its start"
        reason = (
            f"another line has begun it {began}, and here {chosen.path} of step {chosen.step} is saved: end it by "
            "`edl stop`, and type one line everywhere; all machines have to see one folder"
        )
        return LaunchVerdict(1, "failed", reason, cause=REFUSED)

    def _replenish(self, job: JobSeen, now: float) -> list[Command]:
        # Other launchers may start workers for a growing target too; workers of ours that crashed are ours to replace.
        if job.migration:
            return self._make_room(job)
        if self._waits and not self._arrived & self._ours:
            self._target, self._asked_more = job.target, job.asked_more
            return []
        grown, self._target = max(0, job.target - self._target), job.target
        if self._asked_more is not None:  # a request may be taken back and asked again between two looks
            grown = max(grown, job.asked_more - self._asked_more)
        self._asked_more = job.asked_more
        on_their_way = sum(pid not in self._arrived for pid in self._pids.values())
        missing = max(0, job.target - job.members - on_their_way)
        asked = min(grown, missing)
        replacing = 0 if job.spent else min(self._crashes, self.restarts, missing - asked)
        if not job.spent:  # else a script may yet begin another epoch
            self._crashes = 0  # a worker that is not replaced now was not missed, or is one too many
        self.restarts -= replacing
        if asked or replacing:
            return [StartWorkers(asked + replacing, replacing)]
        nobody_comes = self._hosts and not on_their_way and job.members < job.minimum
        short = job.short and nobody_comes and not self._may_yet_exit(job, now)
        return self._fail(job.short, now) if short else []

    def _may_yet_exit(self, job: JobSeen, now: float) -> bool:
        """Tell whether workers that a job of too few has lost may exit, and be replaced.

        The leader may know of their end before this launcher does. A frozen one does not exit.
        """
        lost = (self._arrived & set(self._pids.values())) - job.pids
        if self._short_until is None:
            self._short_until = now + self._limits.doubt_s
        return bool(lost) and self.restarts > 0 and now < self._short_until

    def _make_room(self, job: JobSeen) -> list[Command]:
        """Start workers for a migration to this machine; other missing workers wait for its end.

        --max-restarts bounds how many newcomers that crashed are replaced.
        """
        if job.migration != self._moving:
            self._moving, self._moved, self._room = job.migration, 0, 0
        self._room = max(self._room, job.awaited)
        on_their_way = sum(pid not in self._arrived for pid in self._pids.values())
        missing = max(0, job.awaited - on_their_way)
        first = min(missing, max(0, self._room - self._moved))
        replacing = min(self.restarts, missing - first)
        self._moved += first
        self.restarts -= replacing
        return [StartWorkers(first + replacing, replacing)] if first + replacing else []

    def _silent(self) -> list[Command]:
        return self._end(self._last_word()) if self.phase is Stage.SETTLING else []

    def _interrupted(self, now: float) -> list[Command]:
        if self.phase in GOING:
            return self._kill(now)
        if not self._hosts or self._job.state not in RUNNING or not self._pids:
            return self._fail("interrupted", now, INTERRUPTED)
        self.verdict, self._telling = INTERRUPTED, True
        self.phase, self.deadline = Stage.ENDING, now + TELL_GRACE_S
        return [StopJob("interrupted", self._guests())]

    def _told(self, now: float) -> list[Command]:
        if not self._telling or self.phase is not Stage.ENDING:
            return []
        self._telling, self.deadline = False, now + END_GRACE_S
        return [EndWorkers()]

    def _to_go(self, now: float) -> list[Command]:
        # A second request, or a launch that only waits, ends at once. A running job may not have been seen yet.
        if self._going or (self._waits and not self._pids):
            return self._interrupted(now)
        self._going = True
        return [PreemptJob()] if self._job.state in RUNNING else [LookAtJob()]

    def _go_unsaved(self, now: float) -> list[Command]:
        # The job has not begun, so there is nothing to save.
        commands = self._interrupted(now)
        if self._job.state not in OVER:
            self.verdict = NOT_BEGUN
        return commands

    def _timed_out(self, now: float) -> list[Command]:
        if self.deadline is None or now < self.deadline:
            return []
        if self.phase is Stage.WATCHING and self._only_latecomers():
            return self._end_latecomers(now)
        if self.phase is Stage.WATCHING:
            slow = " and ".join(f"worker {slot}" for slot in sorted(self._pids))
            reason = f"{slow} ran on for {self._limits.settle_s:g} s after the job had finished"
            return self._fail(reason, now, LaunchVerdict(1, "failed", reason, cause=SPENT))
        if self.phase is Stage.DOUBTING:
            return self._fail(self._doubt, now)
        return self._overdue(now)

    def _overdue(self, now: float) -> list[Command]:
        if self.phase is Stage.LEAVING:
            self.phase, self.deadline = Stage.ENDING, now + END_GRACE_S
            return [EndWorkers()]
        if self.phase is Stage.ENDING:
            return self._told(now) if self._telling else self._kill(now)
        return self._end(self._last_word() if self.phase is Stage.SETTLING else None)

    # --------------------------------------------------------------------------------------------------- moves

    def _settle(self, now: float) -> list[Command]:
        self.phase, self.deadline = Stage.SETTLING, now + self._limits.settle_s
        return [AskForLastWord()]

    def _last_word(self) -> LaunchVerdict:
        """Judge a job from its last known state, as all workers here have exited."""
        job = self._job
        if job.state == "finished":
            return self._finished()
        if job.state == "preempted":
            return LaunchVerdict(PREEMPTED_CODE, "preempted", job.reason)
        if self._doubt:
            return self._failed(self._doubt)
        if not self._arrived:
            return LaunchVerdict(1, "failed", NEVER_JOINED, cause=REFUSED)
        if job.size and not job.ranks:
            return _finished("its workers here have left; the job goes on elsewhere")
        return self._failed(f"all workers exited, but the job was still {job.state}")

    def _finished(self) -> LaunchVerdict:
        """Return the verdict on a finished job: a failure if a worker ended badly after telling of a good end."""
        bad = next((reason for pid, reason in self._gone.items() if pid in self._job.done), None)
        if bad is None:
            unsaved = self._job.unsaved
            return _finished(f"it has finished, and its last checkpoint came to nothing: {unsaved}" if unsaved else "")
        return LaunchVerdict(1, "failed", f"{bad}, after it had told the job of a good end", cause=SPENT)

    def _failed(self, reason: str) -> LaunchVerdict:
        by = self._job.failed_by if self._job.state == "failed" else FailedBy.FAULT
        exits = describe_exit(self._codes[0]) if self._codes else ""
        return LaunchVerdict(1, "failed", reason, cause=cause_of_failure(by, self._codes), exits=exits)

    def _fail(self, reason: str, now: float, verdict: LaunchVerdict | None = None) -> list[Command]:
        self.verdict = verdict or self._failed(reason)
        guests = self._guests()
        stop: list[Command] = [StopJob(reason, guests)] if guests and self._job.state not in OVER else []
        if not self._pids:
            return stop + self._end()
        self.phase, self.deadline = Stage.ENDING, now + END_GRACE_S
        return [*stop, EndWorkers()]

    def _leave(self, now: float) -> list[Command]:
        """Let workers of a preempted job end by themselves, before they are asked to."""
        self.verdict = LaunchVerdict(PREEMPTED_CODE, "preempted", self._job.reason)
        if not self._pids:
            return self._end()
        self.phase, self.deadline = Stage.LEAVING, now + GO_GRACE_S
        return []

    def _kill(self, now: float) -> list[Command]:
        self.phase, self.deadline = Stage.KILLING, now + KILL_GRACE_S
        return [KillWorkers()]

    def _end(self, verdict: LaunchVerdict | None = None) -> list[Command]:
        self.phase, self.deadline = Stage.ENDED, None
        self.verdict = verdict or self.verdict
        return []


def _finished(note: str = "") -> LaunchVerdict:
    return LaunchVerdict(0, "finished", note=note)
