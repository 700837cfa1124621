"""The requests of daemons and the command line to the leader, and its replies (I10: each in a signed envelope)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from edl.protocol.assignment import Orders, RingKind
from edl.protocol.checkpoint_record import PartInfo, Resumed
from edl.protocol.data_nouns import DataSpec, ShardPart
from edl.protocol.divergence_report import Divergence, Fingerprint
from edl.protocol.job_policy import Count, JobPolicy
from edl.protocol.record import KEEP_S, Identity, Room, Status
from edl.protocol.tally import LimbSeen, Usage

LONGEST_REASON: Final = 2000
Reason = Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
"""The reason that a worker gives for its end; bounded, as the record keeps it, and an exception may quote a tensor."""

GRADIENTS: Final = "the gradients"  # the awaited collective of a step; any other collective has a name of its own


def clipped(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A daemon asks the stand-in of its slot to ask the driver for the rank, once for each recount; 0: for none."""

    recount: int


class Word(msgspec.Struct, frozen=True, tag="word"):
    """The complete state of the stand-in, for its daemon.

    The driver counts its workers anew when its hosts change: it waits until each slot has asked for its new rank, frees
    the slots that it has no room for, and starts the missing ones. Such a count is a recount. The leader numbers
    recounts.
    """

    noticed: float = 0.0  # when the driver has told of a change of hosts, by this host's wall clock
    answered: int = 0  # the newest recount that the driver has answered
    freed: bool = False  # by that answer the slot is none of the driver's workers any more
    size: int = 0  # workers in that count
    slots: int = 0  # workers of this host in that count
    gone: bool = False  # the stand-in itself is gone: to the driver the slot has failed
    leave: bool = False  # the driver gives up this host, or the user gives up this worker


class Phase(StrEnum):
    """The phase in which a trainer was last seen."""

    BOOTING = "booting"
    REHEARSING = "rehearsing"
    READY = "ready"
    TRAINING = "training"
    BROKEN = "broken"  # its ring failed; it waits for the next generation
    DONE = "done"  # the script came to its end
    FAILED = "failed"  # the script raised, or the trainer died


class Pause(msgspec.Struct, frozen=True):
    """The cost of one switch for one survivor, in milliseconds."""

    leave: float
    enter: float
    state: float
    total: float


class Void(msgspec.Struct, frozen=True):
    """The ring of `generation` has failed a trainer that is still in its mini-batch: the trainer does not hang."""

    generation: int
    awaited: Reason = ""  # the collective that it had waited for when the ring failed; empty: none, or not for long
    waited_s: float = 0.0  # for so long nothing had moved before it gave the ring up; 0.0: the ring failed by itself


class ScriptPlace(msgspec.Struct, frozen=True):
    """The place of a script that has not ended a step for long: the line of its training thread, and what that
    awaits.
    """

    step: int  # the step in progress
    place: Reason
    generation: int = 0  # of its ring
    awaits: Reason = ""  # the collective that it waits for there; empty: none, or not for long
    in_vain: bool = False  # nothing has moved there for a step time-out


class TrainerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a trainer reports of itself to its job."""

    phase: Phase = Phase.BOOTING
    generation: int = 0  # of the ring that it sits in, or that has failed it; 0: alone, or not in the state of its ring
    began: int | None = None  # the step after which its present or last ring took over; None: it was in none
    # when it entered that ring: the generation whose leases its steps were trained by, or its own if those hold
    leases_of: int = 0
    data: DataSpec | None = None
    stream: tuple[ShardPart, ...] = ()  # what it has found in the parts of a stream that it reads
    pause: Pause | None = None  # of the switch into `generation`
    leaving: bool = False  # it was asked to leave (SIGTERM)
    reason: Reason = ""  # why it is BROKEN or FAILED
    missed: int = 0  # the newest generation whose switch it has missed: it waits for samples beyond that step
    marked: tuple[int, int] = (0, 0)  # number of a rebatch, and the step beyond which no samples are handed out for now
    diverged: Divergence | None = None  # the newest that its ring has found
    final: tuple[Fingerprint, ...] = ()  # fingerprints of its state, if its script came to its end
    joined: int = 0  # of a newcomer that has ended: the step after which it joined; 0: it is none
    booted: bool = False  # it has been in a ring of the job, or through its rehearsal
    prepares: bool = False  # it can form a ring beside its present one
    sends_state: bool = False  # it can send its state to a newcomer, or receive it, beside a step
    # size of that state, if it can be sent over several steps; 0: it is sent at once, or is unknown
    state_bytes: int = 0
    prepared: tuple[int, Reason] = (0, "")  # the newest ring that it has formed so, or why that ring does not stand
    offer: int = 0  # address at which newcomers get its state in that ring, beside the first steps; 0: none
    save_wanted: int = 0  # its script has asked for a checkpoint after this step, or a later one
    foreign: bool = False  # it has failed, as the checkpoint does not go with its script
    void: Void | None = None  # of its present mini-batch
    whereabouts: ScriptPlace | None = None  # the newest; the step may have ended since
    bits: Reason = ""  # with virtual workers: "held", or since when not and why

    @property
    def over(self) -> bool:
        """Tell whether the script has ended, well or not."""
        return self.phase in (Phase.DONE, Phase.FAILED)


class Observation(TrainerFacts, frozen=True, kw_only=True):
    """A worker as its daemon sees it: the trainer's facts, and the daemon's own. Sent whole each time, so that only the
    newest observation counts.
    """

    step: int  # committed by this worker
    step_time_s: float = 0.0  # the shorter of the means over half a second and over twenty; 0: unknown
    refused: dict[str, int] = {}  # messages refused by its daemon, by reason
    driver: Word | None = None  # under an elastic horovodrun
    usage: Usage | None = None
    met: tuple[int, ...] = (0,)  # the newest call to a next ring, and the ranks that it has not met there yet
    saved_part: tuple[int, PartInfo | None] = (0, None)  # the newest saving of which its part is durable
    save_failed: tuple[int, Reason] = (0, "")  # the newest saving that it has no part of, and why
    dead: tuple[str, ...] = ()  # other workers of its host of which neither the trainer nor the daemon lives
    limbs: tuple[LimbSeen, ...] = ()  # the processes of a worker of several, by their places in it
    halted: str = ""  # what the system holds its process up by, if it does
    at: float = 0.0  # when that was so, by a monotonic clock of the worker's machine


class Register(msgspec.Struct, frozen=True, tag="register"):
    """A daemon registers its worker. Idempotent.

    `again`: its trainer has had orders from a daemon before this one; a leader that does not know it has given it up.
    """

    identity: Identity
    np: int  # size the job was started with
    minimum: int
    maximum: int
    answering: bool = False  # started because the job had asked for more workers
    job_policy: JobPolicy = JobPolicy()  # of the job, if this worker is its first
    keep_s: float = KEEP_S  # likewise: how long the nodes of the job stay once it is over
    again: bool = False
    ring: RingKind = RingKind.UNSAID
    resumed: Resumed | None = None  # likewise: the checkpoint that the job resumes from
    not_resumed: str = ""  # likewise: why that cannot be read. In a job that trains, newer ones have replaced it
    processes: int = 1  # of this worker


class Report(msgspec.Struct, frozen=True, tag="report"):
    """The state of a worker; sent when it changes, and periodically."""

    observation: Observation


class Await(msgspec.Struct, frozen=True, tag="await"):
    """Request orders newer than (term, version); answered when there are urgent ones, or after `hold_s` with the
    newest.
    """

    term: int
    version: int
    hold_s: float


class AskAddresses(msgspec.Struct, frozen=True, tag="ask_addresses"):
    """Exchange addresses between daemons while a ring is formed: parcels, for those of the other
    (`edl.core.switch.address_exchange`).

    Answered when the other daemon has its parcels, or after `hold_s` without.
    """

    generation: int
    mesh: str  # one of the ring's meshes, by Horovod's name
    kind: int
    part: int
    parcels: tuple[bytes, ...]
    hold_s: float


class AskPresence(msgspec.Struct, frozen=True, tag="ask_presence"):
    """Ask another daemon whether it has been called, too, and its trainer is there. Held for `hold_s`."""

    number: int  # of the call
    hold_s: float


class AskStatus(msgspec.Struct, frozen=True, tag="ask_status"):
    """Ask for the job's status; sent by the command line."""


class AskScale(msgspec.Struct, frozen=True, tag="ask_scale"):
    """Ask for `size` workers; sent by the command line or a scheduler. `request`: its id, under which it is accepted
    once.
    """

    size: int
    request: str = ""


class AskScaleOut(msgspec.Struct, frozen=True, tag="ask_scale_out"):
    """Ask for so many workers more; sent by a scheduler."""

    workers: int
    request: str = ""


class AskScaleIn(msgspec.Struct, frozen=True, tag="ask_scale_in"):
    """Ask for so many workers fewer, or to lose just these; sent by a scheduler."""

    workers: int | tuple[str, ...]
    request: str = ""


class AskBatch(msgspec.Struct, frozen=True, tag="ask_batch"):
    """Ask for so many samples a step, of all workers together; sent by the command line or a scheduler."""

    samples: Count


class AskCheckpoint(msgspec.Struct, frozen=True, tag="ask_checkpoint"):
    """Ask for a checkpoint; sent by the command line or a scheduler. `request`: its id; if it is repeated, the answer
    tells the result.
    """

    request: str


class AskPreempt(msgspec.Struct, frozen=True, tag="ask_preempt"):
    """Ask to save the job, and end it so that it can be resumed; sent by a launcher, the command line or a
    scheduler.
    """

    reason: Reason
    deadline_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)]
    life: Annotated[int, msgspec.Meta(ge=0)] = 0  # of the job, in the folder of its checkpoints; 0: the present one


class AskMigrate(msgspec.Struct, frozen=True, tag="ask_migrate"):
    """Ask to move the workers of `host` to others; sent by the command line or a scheduler. `request`: its id; if it is
    repeated, the answer tells the result.
    """

    request: str
    host: str
    to: tuple[Room, ...] = ()  # empty: the other hosts of the job
    within_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0  # 0: as long as a boot may take


class AskStop(msgspec.Struct, frozen=True, tag="ask_stop"):
    """Ask to end the job cleanly; sent by the command line."""

    reason: Reason


Scaling = AskScale | AskScaleOut | AskScaleIn
Asked = AskStatus | AskStop | AskBatch | AskCheckpoint | AskPreempt | AskMigrate | Scaling
Request = Register | Report | Await | AskAddresses | AskPresence | Asked


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request is accepted, and durable."""


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """The answer to a request for another size: durable, and never lost. `target` is the size that it asked for.

    >>> with Job("mnist") as job:
    ...     match job.scale_out(1):
    ...         case Ack(target):
    ...             print(target, "workers are asked for")
    ...         case Retry(reason):
    ...             print("ask again later:", reason)
    2 workers are asked for
    """

    target: int


class SaveTold(msgspec.Struct, frozen=True, tag="save_told"):
    """The answer to AskCheckpoint: the request is on record; `path` is empty until a checkpoint is durable. If none
    will be, the answer is Rejected.
    """

    step: int
    path: str


class MoveTold(msgspec.Struct, frozen=True, tag="move_told"):
    """The answer to AskMigrate: the request is on record, and `done` once no worker is left on the host. If that fails,
    the answer is Rejected.
    """

    done: bool


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The request is refused. `retry`: it may be accepted later, or after registering again."""

    reason: str
    retry: bool = False


class Ordered(msgspec.Struct, frozen=True, tag="ordered"):
    """The answer to Await."""

    orders: Orders


class Addresses(msgspec.Struct, frozen=True, tag="addresses"):
    """The answer to AskAddresses: addresses of trainers, as gloo writes them; None: not known yet."""

    parcels: tuple[bytes, ...] | None


class Presence(msgspec.Struct, frozen=True, tag="presence"):
    """The answer to AskPresence."""

    here: bool


class Told(msgspec.Struct, frozen=True, tag="told"):
    """The answer to AskStatus."""

    status: Status


Reply = Done | Ack | Rejected | Ordered | Addresses | Presence | SaveTold | MoveTold | Told
