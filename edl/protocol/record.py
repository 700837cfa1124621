"""The nouns of a job: its leader's decisions, in the form in which the coordinator keeps them.

A `Record` is the whole truth about decisions. Observations of workers (steps, pauses) are never kept: the workers
themselves report them again to each new leader (I9).

A node holds JSON that people can read, compressed if it is large: at most 1 MB, and larger values cannot be stored at
all. The record of a thousand workers has a third of that, and each plan dropped since the present generation adds a
ledger of the same size. But members and leases are much alike, so that compression leaves a fraction.
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Any, Final

import msgspec

from edl.protocol.assignment import RingKind
from edl.protocol.checkpoint_record import Cost, Preemption, Remnant, Resumed, Saved, SaveRequest, Saving, SavingFailure
from edl.protocol.data_nouns import DataCounts, DataSpec, LedgerSnapshot
from edl.protocol.divergence_report import EndState
from edl.protocol.job_policy import JobPolicy, Rebatch, Replacing
from edl.protocol.tally import LimbSeen, Rate, Tally, Usage


class Room(msgspec.Struct, frozen=True):
    """A number of newcomers that enter on a host in place of the leavers."""

    host: str
    slots: int

    def __str__(self) -> str:
        return f"{self.host}:{self.slots}"


class Migration(msgspec.Struct, frozen=True):
    """The migration of all workers of `host`, which leave once as many newcomers can enter in their place."""

    number: int  # counts the migrations of a job, from 1
    request: str  # id of the request
    host: str  # its name, or its address
    to: tuple[Room, ...]
    within_s: float  # time for the newcomers to be ready
    newcomers: tuple[str, ...] = ()  # newcomers that have come for it


class Migrated(msgspec.Struct, frozen=True):
    """A migration that is over. `failure`: why it failed; empty if no worker is left on its host."""

    request: str
    failure: str = ""


class MigrationStatus(msgspec.Struct, frozen=True):
    """The migration under way, as `edl status` shows it."""

    number: int
    host: str
    to: tuple[Room, ...]
    awaited: tuple[Room, ...]  # newcomers that have not come yet, by host
    newcomers: tuple[str, ...]  # newcomers that have come


class JobState(StrEnum):
    """The state of a job.

    >>> JobState("running") is JobState.RUNNING
    True
    """

    STARTING = "starting"  # no generation yet: not enough workers
    RUNNING = "running"
    SCALING = "scaling"  # a next generation is planned
    PREEMPTING = "preempting"  # shown to people: it is to be saved, and then to end
    PREEMPTED = "preempted"  # it has ended, and can be resumed
    RESUMING = "resuming"  # shown to people: it does not train yet, and resumes from a checkpoint
    FINISHED = "finished"
    FAILED = "failed"


OVER = (JobState.FINISHED, JobState.FAILED, JobState.PREEMPTED)


class FailedBy(StrEnum):
    """The cause of a job's failure: it tells whether another life of the job could end otherwise."""

    FAULT = "fault"  # a machine, a process or a script failed
    STOP = "stop"  # it was told to end
    DIVERGENCE = "divergence"  # its workers were found to differ
    REFUSAL = "refusal"  # its settings or its workers do not go together


class WorkerState(StrEnum):
    """The state of a worker in its job; `edl.core.job.member_states` has the transitions.

    >>> [state.value for state in WorkerState][:3]
    ['joining', 'warming', 'ready']
    """

    JOINING = "joining"  # registered; its script boots
    WARMING = "warming"  # rehearses its first mini-batch in a ring of one
    READY = "ready"  # could enter a ring at once (I4)
    SWITCHING = "switching"  # in the roster of the next generation
    TRAINING = "training"  # in the roster of the present generation
    LEAVING = "leaving"  # trains until the next generation takes over, then exits
    DONE = "done"  # its script came to its end


KEEP_S: Final = 604_800.0  # a week


class Identity(msgspec.Struct, frozen=True):
    """The identity of a worker, which its daemon reports once."""

    id: str
    host: str
    address: str  # address at which other hosts reach the worker's host
    pid: int  # of the trainer
    daemon_pid: int
    driver_slot: str = ""  # host:number, where an elastic horovodrun has started it
    port: int = 0  # port of its daemon for others, at `address`


class Member(msgspec.Struct, frozen=True):
    """A worker the leader knows."""

    identity: Identity
    state: WorkerState
    number: int  # order of arrival, from 1
    local_rank: int = 0  # unique among the members of its host (`edl.core.job.local_ranks`)


class Plan(msgspec.Struct, frozen=True):
    """The next generation, decided and not yet in force. `after_step` None: at once, as the present ring is broken."""

    generation: int
    roster: tuple[str, ...]
    after_step: int | None
    ledger: LedgerSnapshot | None  # data as of `leased_after`; None while that step is unknown
    prepared: bool = False  # its ring stands at all members, beside the present one
    # over so many steps newcomers get their state while all others compute, and have no samples; 0: before the first
    # step
    beside: int = 0
    offer: int = 0  # address of the first of the roster from which newcomers get the state; 0: none
    foreseen: int | None = None  # if the present ring is broken: the newest step that its survivors have reported

    @property
    def leased_after(self) -> int | None:
        """The step after which its ring trains by the leases of its `ledger`, if it begins there."""
        return self.foreseen if self.after_step is None else self.after_step


class RollCall(msgspec.Struct, frozen=True):
    """The workers of a next generation: they are called, find each other, and form its ring beside the present one.
    Then it is planned. `generation`: of that ring, once all have met; 0 before, and if the ring is formed in line.
    """

    number: int  # counts the calls of a job, from 1
    roster: tuple[str, ...]
    generation: int = 0


class Limits(msgspec.Struct, frozen=True):
    """The bounds of the job's size."""

    minimum: int
    maximum: int


class Gone(msgspec.Struct, frozen=True):
    """A worker that is not a member any more. `reason`: why it was given up; empty if it left as it was told to."""

    worker: str
    reason: str


class Taken(msgspec.Struct, frozen=True):
    """A request for another size that was accepted. If it comes again, because its answer was lost, it changes
    nothing.
    """

    request: str  # its id
    target: int  # the target in its answer


class Strike(msgspec.Struct, frozen=True):
    """A worker, and the number of rings with it that failed since it was last in one that made a step."""

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
    """The evidence about which workers can be part of a ring (`edl.core.switch.ring_blame`)."""

    proven: tuple[str, ...] = ()  # roster of the newest ring before the present one that has made a step
    judged: int = 0  # the newest generation whose failure was examined
    strikes: tuple[Strike, ...] = ()
    failed: int = 0  # rings in a row that failed for no known reason
    left_out: str = ""  # member left out of the next ring, to see whether the ring stands without it
    tried: tuple[str, ...] = ()  # members that were left out before, in vain
    unfit: tuple[Unfit, ...] = ()  # the newest ones
    parted: int = 0  # times that newcomers reached another state than the others, and left


class DriverCount(msgspec.Struct, frozen=True):
    """The recounts of an elastic horovodrun's driver, which alone starts workers and frees their slots.

    Changed by `edl.core.driver.horovod_counts` only.
    """

    begun: int = 0  # recounts that all slots were told to ask for
    answered: int = 0  # recounts that the driver has answered
    asks_from: dict[str, int] = {}  # by worker: the first recount that its slot takes part in
    heeded: dict[str, float] = {}  # by slot: the newest notice of other hosts when the newest recount was begun
    wished: bool = False  # the target was asked for, and the driver has not reached it yet
    lost_slots: tuple[str, ...] = ()  # slots that the driver may take for failed, since its last recount
    # those among them that the driver must know of before it answers the present recount
    told_lost: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()  # hosts that the driver has given up for that

    @property
    def counting(self) -> bool:
        """Tell whether a recount was begun, and is not answered yet."""
        return self.answered < self.begun


class CheckpointRecord(msgspec.Struct, frozen=True):
    """Decisions of the leaders about checkpoints, and about the end of a job that is to go."""

    saving: Saving | None = None  # at most one at a time
    saves: int = 0  # number of savings ever begun
    saved: Saved | None = None  # the newest durable checkpoint
    save_costs: tuple[Cost, ...] = ()  # costs of the newest checkpoints, oldest first
    save_failure: SavingFailure | None = None  # None: no saving was given up since the newest durable checkpoint
    save_requests: tuple[SaveRequest, ...] = ()  # the newest, oldest first
    save_wanted: int = 0  # the newest step at which a script has asked for a checkpoint that no saving serves yet
    remnants: tuple[Remnant, ...] = ()  # of workers lost since, that may hold what no worker has
    preemption: Preemption | None = None
    resumed: Resumed | None = None  # the checkpoint that this life of the job resumed from


class SizingRecord(msgspec.Struct, frozen=True):
    """Requests of people, the job's policy and horovodrun's driver for the job's size and its batch."""

    taken: tuple[Taken, ...] = ()  # the newest requests for another size, oldest first
    driver: DriverCount | None = None  # None: no elastic horovodrun has started the job
    rates: tuple[Rate, ...] = ()  # the measured rate of each size, smallest size first
    ruling: str = ""  # the newest reason for the present or the wanted size
    replacing: Replacing | None = None
    rebatch: Rebatch | None = None
    rebatches: int = 0  # number of rebatches ever begun
    shares: dict[str, float] = {}  # shares of the batch, by worker, in any unit; 1.0 for workers that are not named
    asked_batch: int = 0  # samples a step, of all workers, that people asked for since; 0: as `job_policy` says


class EndingRecord(msgspec.Struct, frozen=True):
    """Ends of scripts, and differences between workers."""

    # generation and step of the newest divergence reported, and whether it persisted
    diverged: tuple[int, int, bool] = (0, 0, False)
    differed: str = ""  # the words that people were told about the first divergence
    finals: tuple[EndState, ...] = ()  # states in which the scripts of workers have ended; a single one, but for faults
    alone: tuple[str, ...] = ()  # workers that ended with a step which others made anew, as a member was lost in it
    unended: str = ""  # a lost worker, and why: no ring without it has had data to train on since
    failed_by: FailedBy = FailedBy.FAULT  # of a job that has failed


class Record(msgspec.Struct, frozen=True):
    """The complete decisions of a job's leaders so far."""

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
    gone: tuple[Gone, ...] = ()  # the newest ones: they may not know yet, and an id is never used twice
    awaited: int = 0  # `arrivals` once all workers have come that were asked for
    job_policy: JobPolicy = JobPolicy()  # how its size is chosen, if people do not choose it
    voided: dict[str, int] = {}  # by worker: the newest generation with an event about its void mini-batch
    keep_s: float = KEEP_S  # how long the job's nodes stay once it is over
    past: tuple[str, ...] = ()  # ids of the workers gone before those in `gone`, the newest
    begun: bool = False  # a worker has been in a ring: newcomers boot alone from then on (I4)
    trials: Trials = Trials()
    roll_call: RollCall | None = None
    roll_calls: int = 0  # number of calls ever made
    ring: RingKind = RingKind.UNSAID  # kind of ring, as its first worker has told
    processes: int = 1  # of each worker, likewise
    losses: int = 0  # workers that were ever lost
    migration: Migration | None = None
    migrations: int = 0  # number of migrations ever begun
    migrated: tuple[Migrated, ...] = ()  # the newest migrations that are over, oldest first
    ending: EndingRecord = EndingRecord()
    sizing: SizingRecord = SizingRecord()
    checkpoints: CheckpointRecord = CheckpointRecord()
    tally: Tally = Tally()
    bits: str = ""  # what the workers say of them, as `Status.bits`

    @property
    def held(self) -> tuple[Remnant, ...]:
        """Return all remnants whose daemons are to hold them: those that may be needed, and those that save the job."""
        return (
            self.checkpoints.remnants
            if self.checkpoints.saving is None
            else (*self.checkpoints.remnants, *self.checkpoints.saving.remnants)
        )


PART_OF: Final = {
    field: part
    for part, kind in (("ending", EndingRecord), ("sizing", SizingRecord), ("checkpoints", CheckpointRecord))
    for field in kind.__struct_fields__
}


def changed(record: Record, **changes: Any) -> Record:
    """Return the record with other values of fields of its own, or of its parts."""
    own = {field: value for field, value in changes.items() if field not in PART_OF}
    for part in {PART_OF[field]: None for field in changes if field in PART_OF}:
        of_part = {field: value for field, value in changes.items() if PART_OF.get(field) == part}
        own[part] = msgspec.structs.replace(getattr(record, part), **of_part)
    return msgspec.structs.replace(record, **own)


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker as `edl status` shows it.

    >>> with Job("mnist") as job:
    ...     [worker] = job.status().workers
    >>> worker.rank, worker.state is WorkerState.TRAINING
    (0, True)
    """

    id: str
    rank: int | None
    host: str
    pid: int
    daemon_pid: int
    state: WorkerState
    step: int
    usage: Usage | None = None  # None: no report has come yet
    pace: float = 1.0  # its speed, relative to the median of all
    processes: tuple[LimbSeen, ...] = ()  # where it has several, by their places in it


class SavingStatus(msgspec.Struct, frozen=True):
    """The saving of a job, as `edl status` shows it."""

    every_s: float  # from one checkpoint to the next; 0: not by time
    every_steps: int  # likewise
    why: str  # reason for this interval, if the job has chosen it by itself
    step: int  # step of the newest durable checkpoint, in this life; 0: there is none yet
    path: str
    failed: SavingFailure | None = None  # failures since that checkpoint
    took_s: float = 0.0  # the longest time until one of the newest checkpoints was durable; 0: unknown


class Stable(msgspec.Struct, frozen=True):
    """The progress of all workers of the ring, which is never taken back."""

    step: int
    samples: int  # of all epochs


class Status(msgspec.Struct, frozen=True):
    """The present state of the job: `edl status --json`.

    >>> with Job("mnist") as job:
    ...     status = job.status()
    >>> status.job, status.state is JobState.RUNNING
    ('mnist', True)
    """

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
    horovodrun: str = ""  # words about the driver
    rates: tuple[Rate, ...] = ()  # the measured rate of each size, smallest size first
    rate: Rate | None = None  # of the present size, since it took effect
    autoscale: str = ""  # the policy that chooses the size, if people do not
    ruling: str = ""  # why the size is as it is, or should be
    batching: str = ""  # the rule that the batch depends on
    batch: int = 0  # samples of a full step, of all workers together; 0: no worker has asked for data yet
    unfit: tuple[Unfit, ...] = ()  # workers that could not be part of a ring, the newest
    failed_by: FailedBy = FailedBy.FAULT  # of a job that has failed
    resumed: str = ""  # path of the checkpoint that this life of the job resumed from
    base: int = 0  # steps of all lives before this one: `step` counts the present one's
    saving: SavingStatus | None = None  # None: the job is not saved
    migration: MigrationStatus | None = None
    started: float = 0.0  # seconds since 1970
    tally: Tally = Tally()
    stable: Stable | None = None  # None: this leader has not heard of all members of the ring yet
    left: int | None = None  # samples of all epochs that are not trained yet; None: there is no end
    ring: RingKind = RingKind.UNSAID
    bits: str = ""  # with virtual workers: "held", or since when not and why; empty: without, or no step was made yet

    @property
    def spent(self) -> bool:
        """Tell whether all data is trained: a newcomer now comes too late."""
        if self.spec is None or self.data is None or self.spec.open_ended:
            return False
        return self.data.epoch == self.spec.epochs - 1 and self.data.trained == self.data.total


PACKED_FROM: Final = 64 * 1024
PACKING_LEVEL: Final = 1  # 3 ms for a thousand workers; a higher level would take longer than it saves


def encode_record(record: Record) -> bytes:
    """Encode a record for its node. Equal records of one process are equal bytes."""
    plain = msgspec.json.encode(record)
    return plain if len(plain) < PACKED_FROM else zlib.compress(plain, PACKING_LEVEL)


def decode_record(value: bytes) -> Record:
    """Decode a stored record. Raises `msgspec.MsgspecError` or `zlib.error` for anything else."""
    plain = value if value.startswith(b"{") else zlib.decompress(value)
    if b'"checkpoints":{' in plain:
        return msgspec.json.decode(plain, type=Record)
    # A job that an earlier version has left: what is in parts now was the record's own.
    fields = msgspec.json.decode(plain, type=dict[str, Any])
    parts: dict[str, dict[str, Any]] = {part: {} for part in PART_OF.values()}
    for field in PART_OF.keys() & fields.keys():
        parts[PART_OF[field]][field] = fields.pop(field)
    return msgspec.json.decode(msgspec.json.encode(fields | parts), type=Record)
