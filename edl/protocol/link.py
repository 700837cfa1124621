"""The messages between a trainer and its own daemon over their private socket. Steps go through the shared page."""

from __future__ import annotations

import msgspec

from edl.protocol.assignment import Orders
from edl.protocol.data import DataSpec
from edl.protocol.divergence import Divergence, Fingerprint
from edl.protocol.messages import Pause, ScriptPlace, Void


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a trainer."""

    member: bool = False  # the trainer has had orders, from a daemon before this one
    prepares: bool = False  # the trainer can form a ring beside its present one
    sends_state: bool = False  # the trainer can send its state to a newcomer, or receive it, beside a step


class StateSized(msgspec.Struct, frozen=True, tag="state_sized"):
    """The size of the state that the trainer can send to a newcomer over several steps."""

    bytes: int


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The script asked for data."""

    spec: DataSpec


class RehearsalBegan(msgspec.Struct, frozen=True, tag="rehearsal_began"):
    """The script was handed the batch that does not count."""


class Rehearsed(msgspec.Struct, frozen=True, tag="rehearsed"):
    """The script has finished its rehearsal: READY."""


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """The ring of `generation` stands, and all its members agreed on the committed step.

    `awaits_state`: the trainer takes part in the first steps without samples, and has no state yet. The message is sent
    again once it has. Until then it counts as a newcomer; but its pipeline reads by the leases of that ring.
    """

    generation: int
    step: int
    leases_of: int  # the generation by whose leases the steps so far were trained; this one, if its leases hold
    pause: Pause | None
    awaits_state: bool = False


class Broke(msgspec.Struct, frozen=True, tag="broke"):
    """The ring failed; the batch after `step` is void unless a peer applied it (I5, I8)."""

    generation: int
    step: int
    reason: str


class Voided(msgspec.Struct, frozen=True, tag="voided"):
    """The ring has failed, and the trainer is still in its mini-batch. `Broke` follows at the end of that."""

    void: Void


class ScriptStands(msgspec.Struct, frozen=True, tag="script_stands"):
    """The script has not reached the end of its step for long."""

    whereabouts: ScriptPlace


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The ring of `generation` stands beside the trainer's present one; or the reason why it does not.

    `able`: other rings may stand. If not, this worker's rings are formed in line from now on. `offer`: address at which
    newcomers get the trainer's state there, beside the first steps; 0: none.
    """

    generation: int
    failure: str = ""
    able: bool = True
    offer: int = 0


class Missed(msgspec.Struct, frozen=True, tag="missed"):
    """The message about the switch to `generation` came after its step, and no later mini-batch ends at which to
    switch.
    """

    # Samples of the steps after the switch are leased with its plan, so there are none for another mini-batch.
    generation: int


class Marked(msgspec.Struct, frozen=True, tag="marked"):
    """The script gets no samples beyond `step` while `rebatch` is under way. 0: there is none."""

    rebatch: int
    step: int


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """The trainer has copied its part of saving `number`: the daemon is to make it durable. Repeated to another
    daemon.
    """

    number: int
    files: tuple[str, ...] = ()  # names in the folder that trainer and daemon share
    stall_ms: float = 0.0  # for so long copying has delayed the script


class CopyMissed(msgspec.Struct, frozen=True, tag="copy_missed"):
    """The trainer has no part of the saving, and never will: the order came after that step, say, or copying failed."""

    number: int
    reason: str


class CheckpointWanted(msgspec.Struct, frozen=True, tag="checkpoint_wanted"):
    """The script asks for a checkpoint after `step`, its present one, or after a later one."""

    step: int


class Diverged(msgspec.Struct, frozen=True, tag="diverged"):
    """The members of the ring have compared their states, and these are not equal."""

    found: Divergence


class Figures(msgspec.Struct, frozen=True, tag="figures"):
    """Figures that the script reports, the newest value of each name."""

    values: dict[str, float]


class LeaveAsked(msgspec.Struct, frozen=True, tag="leave_asked"):
    """The worker was asked to leave, by SIGTERM or by its script."""


class GoingHeard(msgspec.Struct, frozen=True, tag="going_heard"):
    """The trainer knows that the job is preempted: no native code holds the interpreter."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The script has ended; `reason` is empty if all went well."""

    reason: str
    foreign: bool = False  # the checkpoint does not go with the script
    state: tuple[Fingerprint, ...] = ()  # of a good end: fingerprints of the values that must be equal; empty: unknown
    joined: int = 0  # of a newcomer: the step after which it joined; 0: it is none


Notes = (
    Hello
    | StateSized
    | Opened
    | Prepared
    | Missed
    | Marked
    | Copied
    | CopyMissed
    | CheckpointWanted
    | Diverged
    | Figures
)
FromTrainer = (
    RehearsalBegan | Rehearsed | Entered | Voided | ScriptStands | Broke | LeaveAsked | GoingHeard | Ended | Notes
)


class Commanded(msgspec.Struct, frozen=True, tag="commanded"):
    """The leader's newest orders."""

    orders: Orders


class Introduced(msgspec.Struct, frozen=True, tag="introduced"):
    """The daemon's answer to Hello."""


class GaveUp(msgspec.Struct, frozen=True, tag="gave_up"):
    """The daemon cannot go on; the trainer ends with this reason."""

    reason: str


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """The leader has durably accepted the worker's end: the trainer may exit."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A line for the user, beside the output of the script."""

    line: str


FromDaemon = Introduced | Commanded | GaveUp | Noted | Said
