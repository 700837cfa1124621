"""What a trainer and its own daemon say to each other over their private socket. Steps go through the shared page."""

from __future__ import annotations

import msgspec

from edl.protocol.assignment import Orders
from edl.protocol.data import DataSpec
from edl.protocol.divergence import Divergence, Fingerprint
from edl.protocol.messages import Pause, ScriptPlace, Void


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The trainer presents itself."""

    member: bool = False  # it has had orders, by a daemon before this one
    prepares: bool = False  # it can form a ring beside the one that it sits in
    sends_state: bool = False  # it can give its state to a newcomer, or be given it, beside a step


class StateSized(msgspec.Struct, frozen=True, tag="state_sized"):
    """So large is the state that it can give to a newcomer over several steps."""

    bytes: int


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The script asked for data."""

    spec: DataSpec


class RehearsalBegan(msgspec.Struct, frozen=True, tag="rehearsal_began"):
    """The script was handed the batch that does not count."""


class Rehearsed(msgspec.Struct, frozen=True, tag="rehearsed"):
    """It has been through that batch: READY."""


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """The ring of `generation` stands, and all in it agreed on the committed step.

    `awaits_state`: the trainer takes part in the first steps without samples, and has no state yet. It says this again
    once it has. Until then it counts as a newcomer; but its pipeline reads by the leases of that ring.
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
    """The ring has failed the trainer, which is still in the mini-batch. `Broke` follows at the end of that."""

    void: Void


class ScriptStands(msgspec.Struct, frozen=True, tag="script_stands"):
    """The script has not come to the end of its step for long."""

    whereabouts: ScriptPlace


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The ring of `generation` stands beside the one that the trainer sits in; or why it does not.

    `able`: others may. If not, this worker's rings are formed in line from now on. `offer`: where newcomers get the
    trainer's state there, beside the first steps; 0: nowhere.
    """

    generation: int
    failure: str = ""
    able: bool = True
    offer: int = 0


class Missed(msgspec.Struct, frozen=True, tag="missed"):
    """The word of the switch to `generation` came after its step, and no mini-batch follows whose end it could be at.

    For there are no samples for one: those after the switch are leased with its plan.
    """

    generation: int


class Marked(msgspec.Struct, frozen=True, tag="marked"):
    """While `rebatch` is under way, nothing beyond `step` is handed out to the script. 0: there is none."""

    rebatch: int
    step: int


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """The trainer has its part of saving `number`: the daemon is to make it durable. Said again to another daemon."""

    number: int
    files: tuple[str, ...] = ()  # names in the folder that both share
    stall_ms: float = 0.0  # for so long copying has held up the script


class CopyMissed(msgspec.Struct, frozen=True, tag="copy_missed"):
    """It has none, and never will: the word came after that step, say, or copying failed."""

    number: int
    reason: str


class CheckpointWanted(msgspec.Struct, frozen=True, tag="checkpoint_wanted"):
    """The script asks that the job be saved after `step`, which it works on, or after a later one."""

    step: int


class Diverged(msgspec.Struct, frozen=True, tag="diverged"):
    """The members of the ring have compared their states, and these are not equal."""

    found: Divergence


class Figures(msgspec.Struct, frozen=True, tag="figures"):
    """The script's own, the newest of each name."""

    values: dict[str, float]


class LeaveAsked(msgspec.Struct, frozen=True, tag="leave_asked"):
    """SIGTERM, or the script's own wish."""


class GoingHeard(msgspec.Struct, frozen=True, tag="going_heard"):
    """The job is over, to be gone on with, and this process has heard of it: no native code holds the interpreter."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The script's end: `reason` is empty when all went well."""

    reason: str
    foreign: bool = False  # what was saved does not go with it
    state: tuple[Fingerprint, ...] = ()  # of a good end: a sketch of what must be equal; empty: it is not known


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
    """The newest orders of the leader."""

    orders: Orders


class Introduced(msgspec.Struct, frozen=True, tag="introduced"):
    """The daemon's answer to Hello."""


class GaveUp(msgspec.Struct, frozen=True, tag="gave_up"):
    """The daemon cannot go on; the trainer ends with this reason."""

    reason: str


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """The leader has durably taken the worker's end: the trainer may exit."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """What the user is to read, beside what the script prints: one line."""

    line: str


FromDaemon = Introduced | Commanded | GaveUp | Noted | Said
