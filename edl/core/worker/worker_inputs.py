"""Inputs of a worker's machine, and the commands that it gives its shell.

An input comes from one of the trainer's threads: the one that trains, the one that hears the daemon, or one that
fetches samples ahead. Each says below whose it is, if it is not the training thread's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from edl.core.worker.agreement import Vote
from edl.protocol.assignment import Assignment, Orders, Place
from edl.protocol.checkpoint_record import Save
from edl.protocol.data_nouns import DataSpec, ShardPart
from edl.protocol.divergence_report import Divergence, Fingerprint
from edl.protocol.leader_messages import ScriptPlace, clipped

# ------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class OrdersHeard:
    """Orders come on the thread that hears the daemon, at any time: also while the others are in a collective."""

    orders: Orders


@dataclass(frozen=True, slots=True)
class OrdersRead:
    """Report that the training thread looks at its orders where it may follow them; None: there are none yet."""

    orders: Orders | None


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """Report a wait for samples, or for the others, inside a mini-batch: no ring changes there.

    `ahead`: a pipeline's thread waits.
    """

    orders: Orders | None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class RingFormed:
    """Report that all members of the ring to be entered are connected."""


@dataclass(frozen=True, slots=True)
class RingFailed:
    """Report that the ring did not form, or broke before its members had the state to begin in."""

    reason: str


@dataclass(frozen=True, slots=True)
class RingPrepared:
    """Report, on the thread that formed it, that the ring of `generation` stands beside the one that this worker sits
    in.

    `offer`: where newcomers get this worker's state there, beside the first steps, as a number; 0: nowhere.
    """

    generation: int
    offer: int = 0


@dataclass(frozen=True, slots=True)
class RingNotPrepared:
    """Report that the prepared ring failed; the one that this worker sits in goes on. The forming thread reports it,
    too.

    `able`: this worker can prepare another ring.
    """

    generation: int
    reason: str
    able: bool = True


@dataclass(frozen=True, slots=True)
class VotesHeard:
    """The highest of what all members have said, number by number."""

    highest: Vote


@dataclass(frozen=True, slots=True)
class StateComes:
    """Report that of the state fetched beside a step, all is here that a script may see or change before an update."""


@dataclass(frozen=True, slots=True)
class StateCopied:
    """Report that the copied state is whole on this member; beside a step, that its portion is, before its update."""


@dataclass(frozen=True, slots=True)
class StateNeeded:
    """The script of each member uses the whole model before the next update: an evaluation begins. Beside a step that
    has begun a portion of the state is through; the rest is to follow now.
    """


@dataclass(frozen=True, slots=True)
class StateMeasured:
    bytes: int


@dataclass(frozen=True, slots=True)
class DataWanted:
    """The script asks for data, for the first time or for one more epoch. Any thread."""

    spec: DataSpec


@dataclass(frozen=True, slots=True)
class BatchBegins:
    """Report that a forward pass is about to begin, where the script lets it be known."""


@dataclass(frozen=True, slots=True)
class BatchVoid:
    """A collective of this mini-batch failed (I8)."""

    reason: str
    awaited: str = ""  # what this worker had waited for in the ring; empty: nothing, or not for long
    waited_s: float = 0.0  # so long nothing had moved, so that it has given the ring up; 0.0: the ring failed by itself


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """The script has ended a mini-batch, and it was no usual one. `attention`: the daemon asks it to look."""

    attention: bool = False


@dataclass(frozen=True, slots=True)
class StepCovered:
    """Report that the samples of all members in `step` are known, as was asked for in that generation.

    A pipeline's thread may report it, too.
    """

    step: int
    generation: int


@dataclass(frozen=True, slots=True)
class RatesHold:
    """Learning rates are multiplied by the same up to this step."""

    until_step: int


@dataclass(frozen=True, slots=True)
class StatesEqual:
    """The members of this ring have compared their states after the present step, and these are equal."""


@dataclass(frozen=True, slots=True)
class StatesDiffer:
    found: Divergence


@dataclass(frozen=True, slots=True)
class HealingBegins:
    """The state of rank `root` is to become that of all. `current`: this member's is the same already."""

    root: int
    current: bool


@dataclass(frozen=True, slots=True)
class CopyTaken:
    """Report that the state was copied for the saving into these files, where the daemon finds them. Any thread."""

    number: int
    files: tuple[str, ...] = ()
    stall_ms: float = 0.0  # for so long it has held up the script


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """Report that the state was not copied, or was about to change before. Any thread."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class RestartsExpected:
    """Report that when a ring breaks, the script leaves its iteration over the data, and begins another."""


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """Report SIGTERM, or the script's own wish to leave. Any thread."""


@dataclass(frozen=True, slots=True)
class CheckpointWished: ...


@dataclass(frozen=True, slots=True)
class ScriptFailed:
    """Report why the script ends, when it does not end well. The first reason counts."""

    reason: str
    foreign: bool = False  # what was saved does not go with this script


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """A good end, unless a failure was said."""

    state: tuple[Fingerprint, ...] = ()  # a sketch of what it was after the last step; empty: that is not known


@dataclass(frozen=True, slots=True)
class FiguresReported:
    """The script has reported figures: the newest value of each name."""

    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class StreamRead:
    """The reading thread has found these in the parts of a stream that this worker reads."""

    parts: tuple[ShardPart, ...]


@dataclass(frozen=True, slots=True)
class ScriptStands:
    """The script has not reached the end of its step for long. The thread that watches the script says so."""

    whereabouts: ScriptPlace


@dataclass(frozen=True, slots=True)
class BitsStand:
    """The bits of a job with virtual workers are held, or are not since a step, as `bits` says it to people."""

    bits: str


FromOrders = OrdersHeard | OrdersRead | StillWaiting
FromRing = RingFormed | RingFailed | VotesHeard | StateComes | StateCopied
FromNextRing = RingPrepared | RingNotPrepared
FromTraining = BatchBegins | BatchVoid | BatchEnded | StepCovered | RatesHold
FromPortions = StateNeeded | StateMeasured
FromComparison = StatesEqual | StatesDiffer | HealingBegins
FromCopying = CopyTaken | CopyFailed
News = LeaveWanted | FiguresReported | ScriptStands | StreamRead | BitsStand
FromScript = DataWanted | RestartsExpected | CheckpointWished | ScriptFailed | ScriptEnded | News
Input = FromOrders | FromRing | FromNextRing | FromPortions | FromTraining | FromComparison | FromCopying | FromScript


def changes(news: News) -> dict[str, Any]:
    """Return what such news changes in the status of its trainer; it changes nothing else in the machine."""
    match news:
        case LeaveWanted():
            return {"leaving": True}
        case FiguresReported(figures):
            return {"figures": figures}
        case ScriptStands(whereabouts):
            return {"whereabouts": whereabouts}
        case StreamRead(parts):
            return {"stream": parts}
        case BitsStand(bits):
            return {"bits": clipped(bits)}


# ----------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class ReadOrders:
    """Look at the newest orders that the daemon has promised; `OrdersRead` is the answer."""


@dataclass(frozen=True, slots=True)
class AwaitOrders:
    """Wait a moment for newer orders; `OrdersRead` is the answer."""


@dataclass(frozen=True, slots=True)
class BootAlone:
    """Take a ring of one, in which the script boots and rehearses (I4)."""

    local_rank: int


@dataclass(frozen=True, slots=True)
class EnterRing:
    """Leave the ring of now, and form the assigned one; `RingFormed` or `RingFailed` is the answer.

    `cut`: a member of the ring of now is gone. Do not negotiate its end, and free those who wait for it.
    `begun`: a thread forms the assigned one already (`PrepareRing`): wait for what becomes of that, and adopt it.
    """

    assignment: Assignment
    cut: bool
    begun: bool = False


@dataclass(frozen=True, slots=True)
class PrepareRing:
    """Begin to form this ring beside the one of now, on a thread of its own; comes back at once.

    `RingPrepared` or `RingNotPrepared` follows, unless it is let go of before. `all_prepare`: no member forms it in any
    other way, and none goes there before all have said that it stands.
    """

    place: Place
    all_prepare: bool


@dataclass(frozen=True, slots=True)
class ReleaseRing:
    """Release what was, or is being, prepared of this generation, at once, on whichever thread: it is never adopted."""

    generation: int


@dataclass(frozen=True, slots=True)
class AdoptRing:
    """Leave the ring of now for the one that is prepared, without waiting; answered as `EnterRing` is."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Agree:
    """Put this vote into an all-reduce of the highest; `VotesHeard` or `RingFailed` is the answer."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class CopyState:
    """Copy the whole model from rank `root` to all; `StateCopied` or `RingFailed` is the answer.

    In a ring that trains, `BatchVoid` stands for the latter. `current`: this member's state is the same already.
    """

    root: int
    is_root: bool
    current: bool = False


@dataclass(frozen=True, slots=True)
class StatePortion:
    """Portion of a state that goes beside several steps: from number `first` to before `until`, out of `of`."""

    first: int = 0
    until: int = 1
    of: int = 1

    @property
    def is_first(self) -> bool:
        """The step is the first one of the ring."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.until == self.of


WHOLE: Final = StatePortion()  # all of it, beside one step


@dataclass(frozen=True, slots=True)
class SendState:
    """Send state to `newcomers` workers, which fetch it while all compute the step that begins; before its update it is
    sent.

    Only this member waits for that, and a newcomer, before its own update. If this is the first portion or the last,
    the state that a script may change before then is copied now.
    """

    newcomers: int
    portion: StatePortion = WHOLE


@dataclass(frozen=True, slots=True)
class FetchState:
    """Fetch the state that rank `root` has offered: `StateComes` or `RingFailed` is the answer, and later, before the
    update of the first step, `StateCopied` or `BatchVoid`.
    """

    root: int
    offer: int
    portion: StatePortion = WHOLE


@dataclass(frozen=True, slots=True)
class FetchPortion:
    """Fetch the next portion for the step that begins; `StateCopied` or `BatchVoid` follows before its update."""

    portion: StatePortion


@dataclass(frozen=True, slots=True)
class CopyRest:
    """Copy the state that may differ though the weights are equal; the answers are those to `CopyState`.

    `unsure`: state may differ beyond what is each worker's own.
    """

    root: int
    is_root: bool
    unsure: bool


@dataclass(frozen=True, slots=True)
class TakeCopy:
    """Copy what this worker has now, as its part of a checkpoint; comes back at once. `CopyTaken` or `CopyFailed`
    follows, before anything changes it: the next update, a state that is taken over from others, the end of the script.

    What a forward pass or a script may change before that (statistics, hyper-parameters, what is registered, random
    states) is copied now. The next command may be to leave this ring.

    `beside`: on whichever thread, while the script is at work on the next mini-batch, or on something of its own. It is
    copied if no update of it has begun; until it is, none begins. Comes back at once; `CopyFailed` if one has.
    """

    save: Save
    beside: bool = False


@dataclass(frozen=True, slots=True)
class RecordRing:
    place: Place
    step: int


@dataclass(frozen=True, slots=True)
class RecordStep:
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class LeaveRing:
    """Leave the ring, or what is left of it."""


@dataclass(frozen=True, slots=True)
class AbortRings:
    """Fail the collectives in flight of a ring of one of these generations: at once, on whichever thread."""

    generations: range


@dataclass(frozen=True, slots=True)
class SetWeight:
    """Set this worker's share in the coming steps. If two threads carry out two commands, the higher number holds.

    `stand_ins`: the worker has no samples of its own in the coming step. `weightless`: no worker has any (I13).
    """

    number: int
    weight: float
    weightless: bool = False
    stand_ins: bool = False


@dataclass(frozen=True, slots=True)
class TellDaemon:
    """Send the machine's `status` to the daemon, as it has changed; a newer one may be sent in its place."""


@dataclass(frozen=True, slots=True)
class TrainStandIns:
    """Hand out a mini-batch that does not count, so that the script comes to its end: only there rings change."""


@dataclass(frozen=True, slots=True)
class EndScript:
    """End the script. With a reason it does not end well. `resumable`: the job can be gone on with."""

    reason: str
    resumable: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise JobFailed, on this thread."""

    reason: str


@dataclass(frozen=True, slots=True)
class BreakIteration:
    """Raise RingBroken on this thread of a pipeline: the script leaves its iteration over the data."""


Command = (
    ReadOrders
    | AwaitOrders
    | BootAlone
    | EnterRing
    | PrepareRing
    | ReleaseRing
    | AdoptRing
    | Agree
    | CopyState
    | SendState
    | FetchState
    | FetchPortion
    | CopyRest
    | TakeCopy
    | RecordRing
    | RecordStep
    | LeaveRing
    | AbortRings
    | SetWeight
    | TellDaemon
    | TrainStandIns
    | EndScript
    | Fail
    | BreakIteration
)
