"""The nouns of a job: what its leader has decided, in the form in which it is kept in the coordinator.

A `Record` is the whole truth about decisions. What workers were seen doing (steps, pauses) is observation, is never
kept, and is told again to each new leader by the workers themselves (I9).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from edl.protocol.data import DataCounts, DataSpec
from edl.protocol.divergence import EndState
from edl.protocol.figures import Rate, Usage
from edl.protocol.job_policy import JobPolicy, Rebatch, Replacing
from edl.protocol.ledger import LedgerSnapshot
from edl.protocol.moving import Migrated, Migration, MigrationStatus
from edl.protocol.ring import RingKind
from edl.protocol.saving import Cost, Preemption, Resumed, Saved, SaveRequest, Saving, SavingFailure
from edl.protocol.tally import Tally


class JobState(StrEnum):
    """Where a job is in its life."""

    STARTING = "starting"  # no generation yet: not enough workers
    RUNNING = "running"
    SCALING = "scaling"  # a next generation is planned
    PREEMPTING = "preempting"  # as people see it: it is to be saved, and then to go
    PREEMPTED = "preempted"  # it is gone, and can be gone on with
    RESUMING = "resuming"  # as people see it: it has not begun to train yet, and goes on from a checkpoint
    FINISHED = "finished"
    FAILED = "failed"


OVER = (JobState.FINISHED, JobState.FAILED, JobState.PREEMPTED)


class FailedBy(StrEnum):
    """What a job has failed for: whether another life of it could end otherwise."""

    FAULT = "fault"  # a machine, a process or a script failed
    STOP = "stop"  # it was told to end
    DIVERGENCE = "divergence"  # its workers were found to differ
    REFUSAL = "refusal"  # what it was started with does not go together


class WorkerState(StrEnum):
    """Where a worker is on its way through the job; `edl.core.job.members` has the transitions."""

    JOINING = "joining"  # registered; its script boots
    WARMING = "warming"  # rehearses its first mini-batch in a ring of one
    READY = "ready"  # could enter a ring at once (I4)
    SWITCHING = "switching"  # in the roster of the next generation
    TRAINING = "training"  # in the roster of the present generation
    LEAVING = "leaving"  # trains until the next generation takes over, then exits
    DONE = "done"  # its script came to its end


KEEP_S: Final = 604_800.0  # a week


class Identity(msgspec.Struct, frozen=True):
    """What a worker's daemon tells of itself, once."""

    id: str
    host: str
    address: str  # where the worker's host can be reached by the others
    pid: int  # of the trainer
    daemon_pid: int
    driver_slot: str = ""  # host:number, where an elastic horovodrun has started it
    port: int = 0  # where its daemon answers others, at `address`


class Member(msgspec.Struct, frozen=True):
    """A worker the leader knows."""

    identity: Identity
    state: WorkerState
    number: int  # order of arrival, from 1
    local_rank: int = 0  # unique among the members of its host (`edl.core.job.hosts`)


class Plan(msgspec.Struct, frozen=True):
    """The next generation, decided and not yet in force. `after_step` None: at once, the present ring is broken."""

    generation: int
    roster: tuple[str, ...]
    after_step: int | None
    ledger: LedgerSnapshot | None  # data as of `leased_after`; None while that step is not known
    prepared: bool = False  # its ring stands at all members, beside the present one
    beside: int = 0  # over so many steps newcomers get their state while all compute, and have no samples; 0: before
    offer: int = 0  # where they get it: from the first of the roster
    foreseen: int | None = None  # where the present ring is broken: the newest step, as all its survivors have told

    @property
    def leased_after(self) -> int | None:
        """The step after which its ring trains by the leases of its `ledger`, if it begins there."""
        return self.foreseen if self.after_step is None else self.after_step


class Muster(msgspec.Struct, frozen=True):
    """The workers of a next generation: they are called, find each other, and form its ring beside the present one.

    Then it is planned. `generation`: of that ring, from when all have met; 0 before, and where they form it in line.
    """

    number: int  # of the calls of a job, from 1
    roster: tuple[str, ...]
    generation: int = 0


class Limits(msgspec.Struct, frozen=True):
    """How large the job may be."""

    minimum: int
    maximum: int


class Gone(msgspec.Struct, frozen=True):
    """A worker that is not a member any more. `reason`: why it was given up; empty when it left as it was told to."""

    worker: str
    reason: str


class Taken(msgspec.Struct, frozen=True):
    """A request for another size that was taken: when it comes again, because its answer was lost, nothing follows."""

    request: str  # its id
    target: int  # what it was answered with


class Strike(msgspec.Struct, frozen=True):
    """A worker whose rings came to nothing so often, since it was last in one that made a step."""

    worker: str
    times: int
    reason: str


class Unfit(msgspec.Struct, frozen=True):
    """A worker that cannot be part of a ring, and its host."""

    worker: str
    host: str
    address: str
    reason: str


class Trials(msgspec.Struct, frozen=True):
    """What is known of which workers can be part of a ring (`edl.core.switch.unfit`)."""

    proven: tuple[str, ...] = ()  # the ring before the present one, or before that, that has made a step
    judged: int = 0  # the newest generation whose coming to nothing was looked into
    strikes: tuple[Strike, ...] = ()
    failed: int = 0  # rings in a row that came to nothing for no known reason
    left_out: str = ""  # of the next ring, to see whether it stands without this member
    tried: tuple[str, ...] = ()  # those that were left out before, in vain
    unfit: tuple[Unfit, ...] = ()  # the last ones
    parted: int = 0  # times that newcomers came to another state than the others, and left


class DriverCount(msgspec.Struct, frozen=True):
    """The driver of an elastic horovodrun, which alone starts workers and frees their slots, and its counts.

    Changed by `edl.core.driver.counting` only.
    """

    begun: int = 0  # counts that all slots were told to ask for
    answered: int = 0  # and those that the driver has answered
    asks_from: dict[str, int] = {}  # by worker: the first count that its slot takes part in
    heeded: dict[str, float] = {}  # its newest notice of other hosts, by slot, when the newest count was begun
    wished: bool = False  # the target was asked for, and the driver has not come to it yet
    lost_slots: tuple[str, ...] = ()  # which may have failed in its eyes since its last count
    told_lost: tuple[str, ...] = ()  # those among them that it must have heard of before it answers the present count
    given_up: tuple[str, ...] = ()  # hosts that it has given up for that

    @property
    def counting(self) -> bool:
        """A count was begun, and is not answered yet."""
        return self.answered < self.begun


class Record(msgspec.Struct, frozen=True):
    """All that the leaders of a job have decided so far."""

    job: str
    version: int  # grows with every decision
    state: JobState
    reason: str  # why the job failed, or ended before its data did
    limits: Limits
    target: int  # size asked for
    generation: int  # 0: no ring yet
    began_step: int  # step after which this generation took over
    roster: tuple[str, ...]  # index = rank (I2)
    members: tuple[Member, ...]
    arrivals: int  # workers that ever registered
    ledger: LedgerSnapshot | None
    plan: Plan | None
    planned: int  # number of the newest plan, or of the newest ring that was prepared for one; never used twice
    superseded: tuple[Plan, ...]  # plans since this generation; some survivors may have trained by their leases
    started: float
    gone: tuple[Gone, ...] = ()  # the last ones: they may not know yet, and an id is never used twice
    awaited: int = 0  # `arrivals` once all have come that were asked for
    taken: tuple[Taken, ...] = ()  # the newest requests for another size, oldest first
    driver: DriverCount | None = None  # None: no elastic horovodrun has started the job
    job_policy: JobPolicy = JobPolicy()  # how its size is chosen, where people do not
    rates: tuple[Rate, ...] = ()  # what each size was measured at, smallest size first
    ruling: str = ""  # the newest reason for the size that it has, or should have
    replacing: Replacing | None = None
    rebatch: Rebatch | None = None
    rebatches: int = 0  # ever begun
    diverged: tuple[int, int, bool] = (0, 0, False)  # generation and step of the newest divergence told; it persisted
    differed: str = ""  # what people were told of the first one
    finals: tuple[EndState, ...] = ()  # in which states the scripts of workers have ended; all the same, but for faults
    shares: dict[str, float] = {}  # of the batch, by worker, in any unit; 1.0 for those who are not named
    voided: dict[str, int] = {}  # by worker: the newest generation of whose void mini-batch there is an event
    keep_s: float = KEEP_S  # how long the job's nodes stay once it is over
    past: tuple[str, ...] = ()  # ids of those who were gone before these, the newest
    unended: str = ""  # the worker lost, and why: no ring without it has had anything to train since
    begun: bool = False  # a worker has sat in a ring: newcomers boot alone from then on (I4)
    trials: Trials = Trials()
    muster: Muster | None = None
    musters: int = 0  # ever called
    ring: RingKind = RingKind.UNSAID  # as its first worker has said
    saving: Saving | None = None  # at most one at a time
    saves: int = 0  # ever begun
    saved: Saved | None = None  # the newest that is durable
    save_costs: tuple[Cost, ...] = ()  # of the newest ones, oldest first
    save_failure: SavingFailure | None = None  # None: none was given up since the newest that is durable
    losses: int = 0  # workers that were ever lost
    save_requests: tuple[SaveRequest, ...] = ()  # the newest, oldest first
    save_wanted: int = 0  # the newest step at which a script has asked for one, where nothing was to serve that yet
    preemption: Preemption | None = None
    resumed: Resumed | None = None  # what this life of the job has begun with
    migration: Migration | None = None
    migrations: int = 0  # ever begun
    migrated: tuple[Migrated, ...] = ()  # the newest that are over, oldest first
    failed_by: FailedBy = FailedBy.FAULT  # of a job that has failed
    asked_batch: int = 0  # samples a step, of all workers, that people asked for meanwhile; 0: as `job_policy` says
    tally: Tally = Tally()


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker, as `edl status` shows it."""

    id: str
    rank: int | None
    host: str
    pid: int
    daemon_pid: int
    state: WorkerState
    step: int
    usage: Usage | None = None  # None: it has told nothing yet
    pace: float = 1.0  # how fast it works, against the median of all


class SavingStatus(msgspec.Struct, frozen=True):
    """How a job is saved, as `edl status` shows it."""

    every_s: float  # from one checkpoint to the next; 0: not by time
    every_steps: int  # likewise
    why: str  # it is so often, where the job has chosen that by itself
    step: int  # of this life, of the newest that is durable; 0: none is yet
    path: str
    failed: SavingFailure | None = None  # since then
    took_s: float = 0.0  # the longest of the newest ones, until it was durable; 0: not known


class Stable(msgspec.Struct, frozen=True):
    """How far all workers of the ring are: what is counted here is never taken back."""

    step: int
    samples: int  # of all epochs


class Status(msgspec.Struct, frozen=True):
    """The job as it is: `edl status --json`."""

    job: str
    state: JobState
    reason: str
    term: int
    generation: int
    leader: str
    step: int
    epoch: int
    size: int
    target: int
    min_workers: int
    max_workers: int
    workers: tuple[WorkerStatus, ...]
    data: DataCounts | None
    spec: DataSpec | None
    refused: dict[str, int] = {}
    recounts: int = 0  # of horovodrun's driver, begun
    horovodrun: str = ""  # what there is to know of it
    rates: tuple[Rate, ...] = ()  # what each size was measured at, smallest size first
    rate: Rate | None = None  # of the present size, since the job has it
    autoscale: str = ""  # what chooses the size, where people do not
    ruling: str = ""  # why it is as it is, or should be
    batching: str = ""  # what the batch depends on
    batch: int = 0  # samples of a full step, of all workers together; 0: no worker has asked for data yet
    unfit: tuple[Unfit, ...] = ()  # workers that could not be part of a ring, the last ones
    failed_by: FailedBy = FailedBy.FAULT  # of a job that has failed
    resumed: str = ""  # path of the checkpoint that this life of the job has begun with
    base: int = 0  # steps of all lives before this one: `step` counts those of this one
    saving: SavingStatus | None = None  # None: the job is not saved
    migration: MigrationStatus | None = None
    started: float = 0.0  # seconds since 1970
    tally: Tally = Tally()
    stable: Stable | None = None  # None: this leader has not seen all of the ring yet
    left: int | None = None  # samples of all epochs that are not trained yet; None: there is no end to them
    ring: RingKind = RingKind.UNSAID

    @property
    def spent(self) -> bool:
        """All is trained that was to be: a newcomer now comes too late."""
        if self.spec is None or self.data is None or self.spec.open_ended:
            return False
        return self.data.epoch == self.spec.epochs - 1 and self.data.trained == self.data.total
