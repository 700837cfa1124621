"""The fields of each kind of event: one struct per kind. Programs, people and a test of the docs read them.

Owns: the facts, their form in `edl events --json` (`details`) and in words (`words`). Does not own: where and when an
event happened (`edl.events`), nor how long events are kept.

A fact's fields are written beside those of its event. Fields may be added; none may change its meaning, because scripts
outside read them. The docstring of each fact says when the event is emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
from msgspec import UNSET, UnsetType

from edl.events import Kind


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    kind: ClassVar[Kind]

    def details(self) -> dict[str, Any]:
        """Return the fields as `edl events --json` shows them."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Self:
        """Restore the fact from `details`. Raises msgspec.ValidationError."""
        return msgspec.convert(details, cls)

    def words(self) -> str:
        return _plain(self.details())


class JobStarted(Fact, frozen=True, kw_only=True):
    """The first worker has registered."""

    kind = Kind.JOB_STARTED
    np: int
    min: int
    max: int
    ring: str | UnsetType = UNSET  # library that averages gradients on all workers: `edl.protocol.assignment.RingKind`


class LeaderElected(Fact, frozen=True, kw_only=True):
    """A leader has taken over."""

    kind = Kind.LEADER_ELECTED
    worker: str


class LeaderResigned(Fact, frozen=True, kw_only=True):
    """A leader could not lead, and made room for another."""

    kind = Kind.LEADER_RESIGNED
    worker: str
    reason: str


class DriverCounts(Fact, frozen=True, kw_only=True):
    """horovodrun's driver is to count its workers anew."""

    kind = Kind.RECOUNT
    number: int


class DriverCounted(Fact, frozen=True, kw_only=True):
    """Horovodrun's driver has counted its workers anew."""

    kind = Kind.RECOUNTED
    number: int
    size: int
    freed: tuple[str, ...]
    given_up: tuple[str, ...]

    def words(self) -> str:
        freed, lost = ", ".join(self.freed), ", ".join(self.given_up)
        line = f"horovodrun has {counted(self.size, 'worker')}" + (f", without {freed}" if freed else "")
        return line + (f"; it has given up {lost}" if lost else "")


class SizeAsked(Fact, frozen=True, kw_only=True):
    """A request for another size is taken."""

    kind = Kind.SCALE_ASKED
    size: int
    before: int
    leavers: tuple[str, ...] = ()

    def words(self) -> str:
        leavers = f"; to leave: {', '.join(self.leavers)}" if self.leavers else ""
        return f"{self.before} → {counted(self.size, 'worker')}{leavers}"


class BatchAsked(Fact, frozen=True, kw_only=True):
    """A request for another batch is taken: from one of the next steps on."""

    kind = Kind.BATCH_ASKED
    batch: int
    before: int
    workers: int

    def words(self) -> str:
        return f"{self.before} → {self.batch} samples a step, of {counted(self.workers, 'worker')} together"


class PolicyDecided(Fact, frozen=True, kw_only=True):
    """The job's own policy has decided."""

    kind = Kind.DECISION
    size: int
    replace: tuple[str, ...] | UnsetType = UNSET
    reason: str
    act: bool
    shares: Mapping[str, float] | UnsetType = UNSET
    numbers: Mapping[str, Any] = {}

    def details(self) -> dict[str, Any]:
        """Put the numbers that the decision rests on, whose names each policy chooses, beside the other fields."""
        fixed = super().details()
        return {**fixed.pop("numbers"), **fixed}

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Self:
        fixed = {name: value for name, value in details.items() if name in cls.__struct_fields__}
        numbers = {name: value for name, value in details.items() if name not in fixed}
        return super().of({**fixed, "numbers": numbers})

    def words(self) -> str:
        replace = ", ".join(self.replace or ())
        what = f"another worker for {replace}" if replace else counted(self.size, "worker")
        return f"{what}{'' if self.act else ' (as it is)'}: {self.reason}"


class WorkerJoining(Fact, frozen=True, kw_only=True):
    """A worker has registered."""

    kind = Kind.WORKER_JOINING
    worker: str
    host: str

    def words(self) -> str:
        return f"{self.worker} on {self.host}"


class WorkerWarming(Fact, frozen=True, kw_only=True):
    """A newcomer has booted and rehearses; left out if the leader hears of the newcomer only after the rehearsal."""

    kind = Kind.WORKER_WARMING
    worker: str
    joining_ms: int | None

    def words(self) -> str:
        return _spent(self.worker, booting=self.joining_ms)


class WorkerReady(Fact, frozen=True, kw_only=True):
    """A newcomer has been through its rehearsal."""

    kind = Kind.WORKER_READY
    worker: str
    joining_ms: int | None
    warming_ms: int | None

    def words(self) -> str:
        return _spent(self.worker, booting=self.joining_ms, rehearsing=self.warming_ms)


class SwitchScheduled(Fact, frozen=True, kw_only=True):
    """The next generation is planned, or is planned again after the same step because a newcomer has failed."""

    kind = Kind.SWITCH_SCHEDULED
    next_generation: int
    after_step: int | None
    size: int
    newcomers: int
    why: str = ""
    portions: int | UnsetType = UNSET  # number of parts in which newcomers get their state, one part beside each step

    def words(self) -> str:
        step = "at once" if self.after_step is None else f"after step {self.after_step}"
        new = f", {self.newcomers} of them new" if self.newcomers else ""
        if self.portions:
            new += f" (their state comes in {self.portions} portions)"
        why = f", as {self.why}" if self.why else ""
        return f"generation {self.next_generation} {step}: {counted(self.size, 'worker')}{new}{why}"


class SwitchPutOff(Fact, frozen=True, kw_only=True):
    """A switch is planned anew, as its announcement came too late, or its members formed no ring beside training."""

    kind = Kind.SWITCH_PUT_OFF
    next_generation: int
    after_step: int | None  # None: the switch was not announced yet
    reason: str = ""

    def words(self) -> str:
        if self.after_step is None:
            return f"generation {self.next_generation}: {self.reason}; training goes on"
        return f"generation {self.next_generation}: its word came after step {self.after_step}; planned anew"


class Scaled(Fact, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """The next generation trains."""

    kind = Kind.SCALED
    before: int
    after: int
    pause_ms: float | None = None
    forced: bool = False
    leave_ms: float | UnsetType | None = UNSET
    enter_ms: float | UnsetType | None = UNSET
    state_ms: float | UnsetType | None = UNSET
    switching_ms: int | None = None
    asked_ms: int | None = None

    def words(self) -> str:
        line = f"{self.before} → {counted(self.after, 'worker')}"
        if self.pause_ms is not None:
            parts = {"leave": self.leave_ms, "enter": self.enter_ms, "state": self.state_ms}
            known = [f"{name} {part:.0f}" for name, part in parts.items() if isinstance(part, float)]
            line += f"; survivors paused for {self.pause_ms:.0f} ms" + (f" ({', '.join(known)})" if known else "")
        if self.asked_ms is not None:
            line += f"; {_seconds(self.asked_ms)} after it was asked for"
        return line + ("; the ring before was broken" if self.forced else "")


class WorkerLeft(Fact, frozen=True, kw_only=True):
    """A worker that was told to leave has left."""

    kind = Kind.WORKER_LEFT
    worker: str
    leaving_ms: int | None
    why: str = ""

    def words(self) -> str:
        return _spent(self.worker, leaving=self.leaving_ms) + (f": {self.why}" if self.why else "")


class TooFewWorkers(Fact, frozen=True, kw_only=True):
    """Fewer than `--min-np` are left: the job waits for others, as long as a boot may take."""

    kind = Kind.TOO_FEW_WORKERS
    reason: str


class WorkerLost(Fact, frozen=True, kw_only=True):
    """A worker is gone that was not told to leave."""

    kind = Kind.WORKER_LOST
    worker: str
    was: str
    reason: str
    made: int = 0  # steps that the worker was known to have made
    cause: str = ""  # one of LossCause

    def words(self) -> str:
        return f"{self.worker}, which was {self.was}: {self.reason}"


class WorkerUnfit(Fact, frozen=True, kw_only=True):
    """A worker can be part of no ring, and is left out for good."""

    kind = Kind.WORKER_UNFIT
    worker: str
    host: str
    reason: str

    def words(self) -> str:
        return f"{self.worker} of {self.host} can be part of no ring: {self.reason}"


class BatchVoided(Fact, frozen=True, kw_only=True):
    """A worker's ring failed under a mini-batch, which is void unless a peer has applied it."""

    kind = Kind.BATCH_VOIDED
    worker: str
    voided_step: int
    reason: str

    def words(self) -> str:
        return f"{self.worker} in step {self.voided_step}: {self.reason}"


class WorkersDiverged(Fact, frozen=True, kw_only=True):
    """Workers of one ring differ in values that must be equal."""

    kind = Kind.DIVERGED
    workers: tuple[str, ...]
    first: str
    differing: int
    compared: int
    after_step: int
    equal_step: int
    like: str
    majority: bool
    action: str
    likely: str
    told: str = ""

    def words(self) -> str:
        follows = {
            "heal": f"they take over the state of {self.like}",
            "part": f"{', '.join(self.workers)} must leave, and the job trains on",
        }
        return f"{self.told}. What follows: {follows.get(self.action, 'the job fails')}"


class WorkerCorrupted(Fact, frozen=True, kw_only=True):
    """A worker has computed other numbers than two others, or than one other."""

    kind = Kind.CORRUPTED
    worker: str
    certain: bool  # it is this worker, and it must leave
    after_step: int  # committed, when it was found
    equal_step: int  # the newest after which all were found equal
    virtual_worker: int | None  # whose part was computed again; None: states differed
    told: str = ""

    def words(self) -> str:
        follows = f"{self.worker} must leave, and the job trains on" if self.certain else "the job trains on"
        return f"{self.told}. What follows: {follows}"


class LeasesCut(Fact, frozen=True, kw_only=True):
    """The leases beyond a step are cut anew, for other workers, other shares or another batch."""

    kind = Kind.RECUT
    after_step: int
    batch: int
    workers: int


class EpochEnded(Fact, frozen=True, kw_only=True):
    """The last sample of an epoch is trained."""

    kind = Kind.EPOCH_ENDED
    epoch: int


class CheckpointBegun(Fact, frozen=True, kw_only=True):
    """A checkpoint is announced; the event's `step` is that after which all workers copy what they have."""

    kind = Kind.CHECKPOINT_BEGUN
    number: int
    why: str
    path: str

    def words(self) -> str:
        return f"{self.number}, {_BEGUN_FOR.get(self.why, self.why)}: {self.path}"


class CheckpointDurable(Fact, frozen=True, kw_only=True):
    """A checkpoint is durable; the event's `step` is the one that it was made after."""

    kind = Kind.CHECKPOINT_DURABLE
    number: int
    path: str
    bytes: int
    seconds: float | None  # since the announcement; None: another leader announced the checkpoint
    stall_ms: float  # how long the checkpoint held up the trainer that waited longest
    lost_ms: float | None = None  # how much later steps came because of the checkpoint, as far as the leader saw
    next_s: float | None = None  # until the next checkpoint, if the job chooses the interval
    why: str = ""  # the job has chosen `next_s`

    def words(self) -> str:
        took = "" if self.seconds is None else f" after {self.seconds:.1f} s"
        chosen = "" if self.next_s is None else f"; the next one {self.next_s:.0f} s after it began, {self.why}"
        stood = f"trainers stood for {self.stall_ms:.0f} ms"
        return f"{self.number}{took}, {self.bytes} bytes; {stood}: {self.path}{chosen}"


class CheckpointFailed(Fact, frozen=True, kw_only=True):
    """A checkpoint came to nothing, and training goes on; the event's `step` is the one announced."""

    kind = Kind.CHECKPOINT_FAILED
    number: int
    reason: str

    def words(self) -> str:
        return f"{self.number}: {self.reason}"


class PreemptAsked(Fact, frozen=True, kw_only=True):
    """The job is to be saved, and then to end."""

    kind = Kind.PREEMPT_ASKED
    reason: str
    deadline_s: float

    def words(self) -> str:
        return f"{self.reason}; within {self.deadline_s:g} s"


class LifeBegun(Fact, frozen=True, kw_only=True):
    """`edl run` begins a job again by itself; its launcher writes the event, and no leader does."""

    kind = Kind.LIFE_BEGUN
    life: int
    reason: str
    from_step: int
    path: str
    restarts_left: int

    def words(self) -> str:
        place = f"from step {self.from_step}, {self.path}" if self.path else "at its start"
        return f"{self.life}, {place}; the one before: {self.reason}"


class JobPreempted(Fact, frozen=True, kw_only=True):
    """The job has ended by preemption, and can be resumed."""

    kind = Kind.JOB_PREEMPTED
    reason: str

    def words(self) -> str:
        return self.reason


class JobMoving(Fact, frozen=True, kw_only=True):
    """The workers of a host are to leave it, and others replace them."""

    kind = Kind.MIGRATING
    host: str
    to: tuple[str, ...]
    workers: tuple[str, ...]

    def words(self) -> str:
        return f"{', '.join(self.workers)}: from {self.host} to {', '.join(self.to)}"


class JobMoved(Fact, frozen=True, kw_only=True):
    """The host has no worker left, and the workers that replace them train."""

    kind = Kind.MIGRATED
    host: str
    newcomers: tuple[str, ...]

    def words(self) -> str:
        return f"no worker is left on {self.host}; {', '.join(self.newcomers) or 'none'} came for them"


class MovingFailed(Fact, frozen=True, kw_only=True):
    """The workers of the host stay there, and training goes on."""

    kind = Kind.MIGRATION_FAILED
    host: str
    reason: str

    def words(self) -> str:
        return f"from {self.host}: {self.reason}"


class JobHasFailed(Fact, frozen=True, kw_only=True):
    """The job has failed."""

    kind = Kind.JOB_FAILED
    reason: str


class JobFinished(Fact, frozen=True, kw_only=True):
    """The job has ended well."""

    kind = Kind.JOB_FINISHED
    reason: str = ""

    def words(self) -> str:
        return self.reason


FACTS: Mapping[Kind, type[Fact]] = {fact.kind: fact for fact in Fact.__subclasses__()}


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Write a number of things: 1 worker, 2 workers."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def told(kind: str, details: Mapping[str, Any]) -> str:
    """Describe for people the details of an event of `kind`. Show an event of another edl version
    as names and values.
    """
    try:
        return FACTS[Kind(kind)].of(details).words()
    except (ValueError, msgspec.ValidationError):
        return _plain(details)


_BEGUN_FOR = {
    "time": "as it is time",
    "steps": "after so many steps",
    "asked": "as asked",
    "last": "the last one",
    "preempt": "before the job goes",
    "remnants": "by the processes that are left, as no worker is whole",
}


def _plain(details: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in details.items())


def _short(value: Any) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _spent(worker: str, **spans_ms: int | None) -> str:
    """Say which stages the worker has gone through, and how long each took."""
    took: Sequence[str] = [f"{_seconds(span)} of {did}" for did, span in spans_ms.items() if span is not None]
    return f"{worker}{' after ' if took else ''}{' and '.join(took)}"


def _seconds(span_ms: float) -> str:
    return f"{span_ms / 1000:.1f} s"
