"""What daemons and the command line say to the leader, and what it answers (I10: each travels in a signed envelope)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from edl.protocol.assignment import Orders
from edl.protocol.data import DataSpec
from edl.protocol.divergence import Divergence, Fingerprint
from edl.protocol.driver import Word
from edl.protocol.figures import Usage
from edl.protocol.job import KEEP_S, Identity, Status
from edl.protocol.job_policy import Count, JobPolicy
from edl.protocol.moving import Room
from edl.protocol.ring import RingKind
from edl.protocol.saving import PartInfo, Resumed

LONGEST_REASON: Final = 2000
Reason = Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
"""Why a worker ended, as it says: an exception's text may be as long as a tensor, and the record keeps it."""

GRADIENTS: Final = "the gradients"  # what a worker waits for in a step; any other collective has a name of its own


def clipped(reason: str) -> str:
    """As much of it as is taken."""
    return reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."


class Phase(StrEnum):
    """What a trainer was last seen doing."""

    BOOTING = "booting"
    REHEARSING = "rehearsing"
    READY = "ready"
    TRAINING = "training"
    BROKEN = "broken"  # its ring failed; it waits for the next generation
    DONE = "done"  # the script came to its end
    FAILED = "failed"  # the script raised, or the trainer died


class Pause(msgspec.Struct, frozen=True):
    """What one switch cost one survivor, in milliseconds."""

    leave: float
    enter: float
    state: float
    total: float


class Void(msgspec.Struct, frozen=True):
    """The ring of `generation` has failed a trainer that is still in its mini-batch: it does not hang."""

    generation: int
    awaited: Reason = ""  # what it had waited for there when that failed; empty: nothing, or not for long
    waited_s: float = 0.0  # so long nothing had moved, so that it has given the ring up; 0.0: the ring failed by itself


class ScriptPlace(msgspec.Struct, frozen=True):
    """The place of a script that has not ended a step for long: where its training thread is, or what it waits for."""

    step: int  # that it works on
    place: Reason
    generation: int = 0  # of its ring
    awaits: Reason = ""  # what it waits for there; empty: nothing, or not for long
    in_vain: bool = False  # nothing has moved there for a step time-out


class Observation(msgspec.Struct, frozen=True):
    """A worker as its daemon sees it. Sent whole each time, so that the newest one is all that counts."""

    phase: Phase
    generation: int
    step: int  # committed by this worker
    leases_of: int  # when it entered `generation`: whose leases its steps were trained by, or its own if those hold
    step_time_s: float  # the shorter mean of half a second and of twenty, 0 = not known
    data: DataSpec | None
    pause: Pause | None  # of the switch into `generation`
    leaving: bool  # it was asked to leave (SIGTERM)
    reason: Reason
    missed: int = 0  # the newest generation whose switch it has missed: it waits for samples beyond that step
    refused: dict[str, int] = {}  # by its daemon: reason to number
    driver: Word | None = None  # under an elastic horovodrun
    usage: Usage | None = None
    marked: tuple[int, int] = (0, 0)  # number of a rebatching, and the step beyond which nothing is handed out for now
    diverged: Divergence | None = None  # the newest that its ring has found
    final: tuple[Fingerprint, ...] = ()  # a sketch of its state, of a script that came to its end
    met: tuple[int, ...] = (0,)  # the newest call to a next ring, and the ranks of those it has not met there yet
    booted: bool = False  # it has sat in a ring of the job, or been through its rehearsal
    prepares: bool = False  # it can form a ring beside the one that it sits in
    sends_state: bool = False  # it can give its state to a newcomer, or be given it, beside a step
    state_bytes: int = 0  # of that state, where it can go over several steps; 0: it goes at once, or is not known
    prepared: tuple[int, Reason] = (0, "")  # the newest that it has formed so, or why that one does not stand
    offer: int = 0  # where newcomers get its state in that ring, beside the first steps; 0: nowhere
    saved_part: tuple[int, PartInfo | None] = (0, None)  # of the newest saving of which its part is durable
    save_failed: tuple[int, Reason] = (0, "")  # the newest to which it has no part to give, and why
    save_wanted: int = 0  # its script has asked that the job be saved after this step, or a later one
    foreign: bool = False  # it has failed as what was saved does not go with its script
    dead: tuple[str, ...] = ()  # other workers of its host of which neither the trainer nor the daemon lives
    void: Void | None = None  # of the mini-batch that it works on
    whereabouts: ScriptPlace | None = None  # the newest; of a step that it may have ended since
    halted: str = ""  # what the system holds its process up by, if that is so
    at: float = 0.0  # when that was so, by a clock of the worker's machine that never goes back


class Register(msgspec.Struct, frozen=True, tag="register"):
    """A daemon presents its worker. Idempotent.

    `again`: its trainer has had orders, by a daemon before this one; so a leader that does not know it has given it up.
    """

    identity: Identity
    np: int  # size the job was started with
    minimum: int
    maximum: int
    answering: bool = False  # started because the job had asked for more workers
    job_policy: JobPolicy = JobPolicy()  # of the job, where this worker is its first
    keep_s: float = KEEP_S  # likewise: how long the nodes of the job stay once it is over
    again: bool = False
    ring: RingKind = RingKind.UNSAID
    resumed: Resumed | None = None  # likewise: the checkpoint that the job begins with
    not_resumed: str = ""  # likewise: why that cannot be read. In a job that trains, newer ones have taken its place


class Report(msgspec.Struct, frozen=True, tag="report"):
    """What the worker is seen doing; sent when it changes, and now and then."""

    observation: Observation


class Await(msgspec.Struct, frozen=True, tag="await"):
    """Asks for orders newer than (term, version); answered when some press, or after `hold_s` with the newest."""

    term: int
    version: int
    hold_s: float


class AskAddresses(msgspec.Struct, frozen=True, tag="ask_addresses"):
    """From one daemon to another, on the way to a ring: parcels, for those of the other (`edl.core.switch.exchange`).

    Answered when they are there, or after `hold_s` without.
    """

    generation: int
    mesh: str  # one of those that the ring is made of, by Horovod's name
    kind: int
    part: int
    parcels: tuple[bytes, ...]
    hold_s: float


class AskPresence(msgspec.Struct, frozen=True, tag="ask_presence"):
    """From one daemon to another: has it been called, too, and is its trainer there? Held for `hold_s`."""

    number: int  # of the call
    hold_s: float


class AskStatus(msgspec.Struct, frozen=True, tag="ask_status"):
    """From the command line."""


class AskScale(msgspec.Struct, frozen=True, tag="ask_scale"):
    """From the command line or a scheduler: be `size` workers. `request`: its id, by which it is taken only once."""

    size: int
    request: str = ""


class AskScaleOut(msgspec.Struct, frozen=True, tag="ask_scale_out"):
    """From a scheduler: so many workers more."""

    workers: int
    request: str = ""


class AskScaleIn(msgspec.Struct, frozen=True, tag="ask_scale_in"):
    """From a scheduler: so many workers fewer, or just these."""

    workers: int | tuple[str, ...]
    request: str = ""


class AskBatch(msgspec.Struct, frozen=True, tag="ask_batch"):
    """From the command line or a scheduler: so many samples a step, of all workers together, however many they are."""

    samples: Count


class AskCheckpoint(msgspec.Struct, frozen=True, tag="ask_checkpoint"):
    """From the command line or a scheduler: save the job. `request`: its id; asked again under it, the answer says what
    has come of it.
    """

    request: str


class AskPreempt(msgspec.Struct, frozen=True, tag="ask_preempt"):
    """From a launcher, the command line or a scheduler: save the job, and end it so that it can be gone on with."""

    reason: Reason
    deadline_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)]
    life: Annotated[int, msgspec.Meta(ge=0)] = 0  # of the job, in the folder of its checkpoints; 0: whichever it is in


class AskMigrate(msgspec.Struct, frozen=True, tag="ask_migrate"):
    """From the command line or a scheduler: move the workers of `host` to others. `request`: its id; asked again under
    it, the answer says what has come of it.
    """

    request: str
    host: str
    to: tuple[Room, ...] = ()  # empty: to the other hosts of the job
    within_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0  # 0: as long as a boot may take


class AskStop(msgspec.Struct, frozen=True, tag="ask_stop"):
    """From the command line: end the job cleanly."""

    reason: Reason


Scaling = AskScale | AskScaleOut | AskScaleIn
Asked = AskStatus | AskStop | AskBatch | AskCheckpoint | AskPreempt | AskMigrate | Scaling
Request = Register | Report | Await | AskAddresses | AskPresence | Asked


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Taken, and durable."""


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """The answer to a request for another size: on record, and never lost. `target` is the size asked for with it."""

    target: int


class SaveTold(msgspec.Struct, frozen=True, tag="save_told"):
    """The answer to AskCheckpoint: it is on record; `path` is empty until a checkpoint is durable. If none will be, the
    answer is Rejected.
    """

    step: int
    path: str


class MoveTold(msgspec.Struct, frozen=True, tag="move_told"):
    """The answer to AskMigrate: it is on record, and `done` once no worker is left there. If that will not be, the
    answer is Rejected.
    """

    done: bool


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """Understood, and not taken. `retry`: it may be later on, or after registering again."""

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
