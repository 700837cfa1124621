"""What is kept of a queue: its jobs, each with the workers that hold devices for it. All that was decided.

What is seen (reports of agents, the jobs' own leaders) is not kept: a new scheduler sees it again, as each report is
whole. Owns: the forms. Does not own: any rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from edl.cluster.queue.causes import EndCause, EndEvidence
from edl.cluster.queue.phases import TERMINAL, WAITING, JobPhase

NAME = r"\A(?!\.+\Z)[A-Za-z0-9._-]{1,48}\Z"
JobName = Annotated[str, msgspec.Meta(pattern=NAME)]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class Submission(msgspec.Struct, frozen=True):
    """What the job's owner asked for."""

    name: JobName
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    folder: str  # in which it runs
    user: str
    submitted: float
    np: Count = 1
    min_np: Count = 1
    max_np: Count = 1
    batch_range: tuple[int, int] | None = None  # samples a step, of all workers: the fewest and the most
    priority: int = 0
    deadline: float | None = None  # a time of day, in seconds since 1970
    checkpoint: str = ""  # where it is saved
    spread: bool = False  # over nodes; else on as few as can be
    ticket: str = ""  # drawn by who submits: the same one again is the same submission, whose answer was lost


class WorkerWish(StrEnum):
    """What a worker is to do."""

    RUN = "run"
    LEAVE = "leave"  # after the next switch of its job
    DIE = "die"


class WorkerEntry(msgspec.Struct, frozen=True):
    """A worker, and the device that is its own until its process is gone (I17)."""

    id: str  # never used twice
    number: int  # of the job's workers, in the order in which they were made, from 1
    node: str
    device: int
    life: int  # of its job
    since: float  # it has had its wish
    began: float
    wish: WorkerWish = WorkerWish.RUN


class DeviceHeld(msgspec.Struct, frozen=True):
    """A device that was a worker's, and is no more."""

    worker: str
    node: str
    device: int
    began: float
    ended: float


class WorkerExit(msgspec.Struct, frozen=True):
    """A worker of the present life that has ended without being told to."""

    worker: str
    number: int
    at: float
    cause: EndCause | None  # None: it ended well
    code: int | None = None


class FailureKept(msgspec.Struct, frozen=True):
    """A failure that was counted."""

    code: str
    root: str
    step: int
    at: float
    life: int
    made: int  # workers that the job had had by then: if one of these fails at that step too, it is the same failure


class QueueEvent(msgspec.Struct, frozen=True):
    """Something that has happened to a job, or to the cluster (job empty)."""

    ts: float
    kind: str
    job: str
    words: str
    details: dict[str, str | int | float] = {}


class JobEntry(msgspec.Struct, frozen=True):
    """One job. Times are seconds since 1970; what is counted is right up to `since`."""

    asked: Submission
    phase: JobPhase = JobPhase.QUEUED
    reason: str = ""  # for the present phase, in words
    since_phase: float = 0.0
    cause: EndCause | None = None  # of the newest failure
    workers: tuple[WorkerEntry, ...] = ()  # all that hold a device
    made: int = 0  # workers ever
    life: int = 0  # of the job, counted by the scheduler; 0: it has not begun
    ready: bool = False  # the life can begin: where it goes on from is known
    saved_life: int = 1  # its number in the folder of checkpoints
    resume_from: str = ""  # the checkpoint that it goes on from
    started_with: int = 0  # workers that this life began with
    exits: tuple[WorkerExit, ...] = ()  # of this life
    step: int = 0  # the newest that was seen, of all lives
    base: int = 0  # the step that this life began after
    strikes: tuple[FailureKept, ...] = ()  # the newest
    tries_left: int = 0  # before it is given up, unless it comes on
    rests_until: float = 0.0  # it is not begun again before
    batch: int = 0  # that was asked for; 0: its own
    wanted: int = 0  # workers that its owner asked for since: it has at most these; 0: nothing was asked for
    moving: dict[str, int] = {}  # workers by node, as they are to be once it has migrated; empty: it does not
    save_s: float = 0.0  # it is given to be saved; 0: as all are
    sent_away: int = 0  # the last life in which it was to be saved and to go
    # what is counted
    since: float = 0.0
    began: float | None = None
    ended: float | None = None
    changed: float | None = None
    changes: int = 0
    most_tried: int = 0
    ran: float = 0.0
    waited: float = 0.0
    used: dict[str, float] = {}  # device-seconds, by what they were used for
    notes: dict[str, float] = {}  # the policy's
    preemptions: int = 0
    held: tuple[DeviceHeld, ...] = ()  # devices that were its own, the newest
    story: tuple[QueueEvent, ...] = ()  # what has happened to it, the newest
    environ: str = ""  # the file that has its owner's variables

    @property
    def name(self) -> str:
        return self.asked.name

    @property
    def over(self) -> bool:
        return self.phase in TERMINAL

    @property
    def waits(self) -> bool:
        return self.phase in WAITING

    @property
    def staying(self) -> tuple[WorkerEntry, ...]:
        """Workers that are not told to go."""
        return tuple(worker for worker in self.workers if worker.wish is WorkerWish.RUN)

    @property
    def vacancies(self) -> int:
        """Workers that may come: its leader refuses one beyond `--max-np`, and who has not left yet counts."""
        return max(0, self.asked.max_np - len(self.workers))

    @property
    def service(self) -> float:
        """Device-seconds that it has had."""
        return sum(self.used.values())


class WorkerOrder(msgspec.Struct, frozen=True):
    """What an agent is to do with one worker."""

    id: str
    job: str
    device: int
    wish: WorkerWish
    life: int = 1
    saved_life: int = 1
    resume_from: str = ""
    np: int = 1  # with how many workers the life begins


class WorkerSeen(msgspec.Struct, frozen=True):
    """What an agent tells of one worker. `gone`: none of its processes is left, and its device is free."""

    id: str
    gone: bool = False
    evidence: EndEvidence | None = None
    pid: int = 0
    at: float = 0.0  # it ended


class NodeReport(msgspec.Struct, frozen=True):
    """All that an agent knows. `devices`: those that jobs may have."""

    node: str
    devices: tuple[int, ...]
    workers: tuple[WorkerSeen, ...] = ()
    host: str = ""
    pid: int = 0


def within(report: NodeReport, most: int) -> NodeReport:
    """Return the entry with as much of what is told of its workers' ends as fits into so many bytes."""
    length = max((one.evidence.longest for one in report.workers if one.evidence), default=0)
    while length and len(msgspec.json.encode(report)) > most:
        length //= 2
        report = msgspec.structs.replace(report, workers=tuple(_cut(one, length) for one in report.workers))
    return report


def _cut(seen: WorkerSeen, length: int) -> WorkerSeen:
    if seen.evidence is None or seen.evidence.longest <= length:
        return seen
    return msgspec.structs.replace(seen, evidence=seen.evidence.cut(length))


def orders_of(node: str, jobs: Mapping[str, JobEntry]) -> tuple[WorkerOrder, ...]:
    """What an agent is told: its workers of all jobs, as soon as it is known what their life begins with."""
    return tuple(
        WorkerOrder(
            worker.id,
            job.name,
            worker.device,
            worker.wish,
            worker.life,
            job.saved_life,
            job.resume_from,
            job.started_with,
        )
        for job in jobs.values()
        for worker in job.workers
        if worker.node == node and (job.ready or worker.wish is not WorkerWish.RUN)
    )
