"""The durable state of a queue: its jobs, each with its phase and the workers that hold devices for it.

    submitted ─► QUEUED ──► STARTING ──► RUNNING ◄──► SCALING ──► FINISHED
                  ▲  └────► RESUMING ──►    │            │         FAILED
                  │            ▲            ▼            ▼         CANCELLED
                  └─ again ─   └── PREEMPTED ◄──── PREEMPTING

Observations (reports of agents, the status of jobs' own leaders) are not kept: a new scheduler receives them again, as
each report is whole. Owns: the forms, and the table of phases; a transition that it lacks is a fault. Does not own: why
a job failed (`end_causes`), nor when a transition is made (`job_lifecycle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from edl.cluster.queue.end_causes import EndCause, EndEvidence, FailureKept
from edl.errors import InvalidTransition


class JobPhase(StrEnum):
    QUEUED = "queued"  # it waits for devices
    STARTING = "starting"  # it has devices, and has not begun to train
    RUNNING = "running"  # it trains with the workers that it is to have
    SCALING = "scaling"  # it trains, and workers come or go
    PREEMPTING = "preempting"  # it is to be saved, and then to go
    PREEMPTED = "preempted"  # it was saved, and waits for devices again
    RESUMING = "resuming"  # it has devices again, and does not train yet
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PhaseChange(StrEnum):
    PLACED = "devices are its own"
    PLACED_AGAIN = "devices are its own once more"
    TRAINS = "it trains"
    CHANGES = "workers come or go"
    SETTLED = "it has the workers that it is to have"
    SENT_AWAY = "it is to make room"
    SAVED = "it is gone, and can be gone on with"
    AGAIN = "it has failed, and may begin again"
    ENDED = "its work is done"
    GIVEN_UP = "it has failed for good"
    CANCELLED = "its owner has cancelled it"


TERMINAL: Final = frozenset({JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED})
WAITING: Final = frozenset({JobPhase.QUEUED, JobPhase.PREEMPTED})
BOOTING: Final = frozenset({JobPhase.STARTING, JobPhase.RESUMING})
TRAINING: Final = frozenset({JobPhase.RUNNING, JobPhase.SCALING})
ACTIVE: Final = BOOTING | TRAINING

_ENDS: Final = {
    PhaseChange.ENDED: JobPhase.FINISHED,
    PhaseChange.GIVEN_UP: JobPhase.FAILED,
    PhaseChange.CANCELLED: JobPhase.CANCELLED,
}
_LIVES: Final = {**_ENDS, PhaseChange.AGAIN: JobPhase.QUEUED, PhaseChange.SENT_AWAY: JobPhase.PREEMPTING}
_GOES: Final = {PhaseChange.GIVEN_UP: JobPhase.FAILED, PhaseChange.CANCELLED: JobPhase.CANCELLED}
_TABLE: Final[dict[JobPhase, dict[PhaseChange, JobPhase]]] = {
    JobPhase.QUEUED: {PhaseChange.PLACED: JobPhase.STARTING, PhaseChange.PLACED_AGAIN: JobPhase.RESUMING, **_GOES},
    JobPhase.STARTING: {PhaseChange.TRAINS: JobPhase.RUNNING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.RESUMING: {PhaseChange.TRAINS: JobPhase.RUNNING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.RUNNING: {PhaseChange.CHANGES: JobPhase.SCALING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.SCALING: {PhaseChange.SETTLED: JobPhase.RUNNING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.PREEMPTING: {PhaseChange.SAVED: JobPhase.PREEMPTED, PhaseChange.AGAIN: JobPhase.QUEUED, **_ENDS},
    JobPhase.PREEMPTED: {PhaseChange.PLACED_AGAIN: JobPhase.RESUMING, **_GOES},
}
TRANSITIONS: Final = {(phase, turn): to for phase, turns in _TABLE.items() for turn, to in turns.items()}


def after(phase: JobPhase, turn: PhaseChange) -> JobPhase:
    """Raises InvalidTransition."""
    try:
        return TRANSITIONS[phase, turn]
    except KeyError:
        raise InvalidTransition(phase, turn) from None


NAME = r"\A(?!\.+\Z)[A-Za-z0-9._-]{1,48}\Z"
JobName = Annotated[str, msgspec.Meta(pattern=NAME)]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class Submission(msgspec.Struct, frozen=True):
    name: JobName
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    folder: str  # working directory
    user: str
    submitted: float
    np: Count = 1
    min_np: Count = 1
    max_np: Count = 1
    batch_range: tuple[int, int] | None = None  # samples a step, of all workers: the fewest and the most
    priority: int = 0
    deadline: float | None = None  # a time of day, in seconds since 1970
    checkpoint: str = ""  # folder of its checkpoints
    spread: bool = False  # place its workers over many nodes; else on as few as possible
    ticket: str = ""  # drawn by the submitter: the same ticket again is the same submission, whose answer was lost
    processes: Count = 1  # of each worker: each has a device of its own, all on one node

    @property
    def workers_in_words(self) -> str:
        of = f", of {self.processes} processes each" if self.processes > 1 else ""
        return f"{self.np} workers, {self.min_np} to {self.max_np}{of}"


class WorkerWish(StrEnum):
    RUN = "run"
    LEAVE = "leave"  # after the next switch of its job
    DIE = "die"


class WorkerEntry(msgspec.Struct, frozen=True):
    """A worker, and the devices that are its own until its processes are gone (I17)."""

    id: str  # never used twice
    number: int  # counts the job's workers in the order in which they were made, from 1
    node: str
    device: int
    life: int  # of its job
    since: float  # when the present wish was set
    began: float
    wish: WorkerWish = WorkerWish.RUN
    further: tuple[int, ...] = ()  # devices of its further processes

    @property
    def devices(self) -> tuple[int, ...]:
        return (self.device, *self.further)


class DeviceHeld(msgspec.Struct, frozen=True):
    """A device that a worker held and has given back."""

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


class QueueEvent(msgspec.Struct, frozen=True):
    """`job`: empty for an event of the cluster."""

    ts: float
    kind: str
    job: str
    words: str
    details: dict[str, str | int | float] = {}


class JobEntry(msgspec.Struct, frozen=True):
    """A job of the queue. Times are seconds since 1970; counted figures are right up to `since`."""

    asked: Submission
    phase: JobPhase = JobPhase.QUEUED
    reason: str = ""  # for the present phase, in words
    since_phase: float = 0.0
    cause: EndCause | None = None  # of the newest failure
    workers: tuple[WorkerEntry, ...] = ()  # all that hold a device
    made: int = 0  # workers ever
    life: int = 0  # of the job, counted by the scheduler; 0: it has not begun
    ready: bool = False  # the checkpoint from which the life resumes is known, so that it can begin
    saved_life: int = 1  # the number of the life in the folder of checkpoints
    resume_from: str = ""  # the checkpoint that the life resumes from
    started_with: int = 0  # workers that the life began with
    exits: tuple[WorkerExit, ...] = ()  # of this life
    step: int = 0  # the newest step seen, over all lives
    base: int = 0  # the step that this life began after
    strikes: tuple[FailureKept, ...] = ()  # the newest
    tries_left: int = 0  # tries left before the job is given up; progress refills them
    rests_until: float = 0.0  # the job is not begun again before this time
    batch: int = 0  # batch that the policy asked for; 0: the job's own
    wanted: int = 0  # upper bound of workers that its owner has asked for since; 0: none
    moving: dict[str, int] = {}  # target placement of a migration, workers by node; empty: the job does not migrate
    save_s: float = 0.0  # time that the job is given to be saved; 0: the common default
    sent_away: int = 0  # the last life that was preempted
    # counters
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
    held: tuple[DeviceHeld, ...] = ()  # devices that the job held before, the newest
    story: tuple[QueueEvent, ...] = ()  # events of the job, the newest
    environ: str = ""  # the file with its owner's environment variables

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
        """Workers that are not told to leave."""
        return tuple(worker for worker in self.workers if worker.wish is WorkerWish.RUN)

    @property
    def vacancies(self) -> int:
        """Workers that may be added: the job's leader refuses one beyond `--max-np`, and a leaver counts until it is
        gone.
        """
        return max(0, self.asked.max_np - len(self.workers))

    @property
    def service(self) -> float:
        """Device-seconds that the job has used."""
        return sum(self.used.values())


class WorkerOrder(msgspec.Struct, frozen=True):
    id: str
    job: str
    device: int
    wish: WorkerWish
    life: int = 1
    saved_life: int = 1
    resume_from: str = ""
    np: int = 1  # workers that the life begins with
    further: tuple[int, ...] = ()  # devices of its further processes

    @property
    def devices(self) -> tuple[int, ...]:
        return (self.device, *self.further)


class WorkerSeen(msgspec.Struct, frozen=True):
    """An agent's report of one worker. `gone`: none of its processes is left, and its devices are free."""

    id: str
    gone: bool = False
    evidence: EndEvidence | None = None
    pid: int = 0
    at: float = 0.0  # when it ended


class NodeReport(msgspec.Struct, frozen=True):
    """The complete report of an agent. `devices`: those that jobs may use."""

    node: str
    devices: tuple[int, ...]
    workers: tuple[WorkerSeen, ...] = ()
    host: str = ""
    pid: int = 0


def within(report: NodeReport, most: int) -> NodeReport:
    """Shorten the texts about workers' ends until the report fits into `most` bytes."""
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
    """Return the orders of a node's agent: its workers of all jobs whose life is ready to begin."""
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
            worker.further,
        )
        for job in jobs.values()
        for worker in job.workers
        if worker.node == node and (job.ready or worker.wish is not WorkerWish.RUN)
    )
