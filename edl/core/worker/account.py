"""What a trainer has told its daemon: message after message, folded into what the leader is to know of it; and what has
become of the part of a checkpoint that it has handed over.

Owns: what each message changes. Does not own: the messages (`edl.protocol.link`), nor what else is observed of a
trainer (`edl.daemon.observer`).
"""

from __future__ import annotations

from typing import Final

from edl.protocol import link as say
from edl.protocol.data import DataSpec
from edl.protocol.divergence import Divergence, Fingerprint
from edl.protocol.messages import Pause, Phase, ScriptPlace, Void, clipped
from edl.protocol.saving import PartInfo

CALM_S: Final = 0.03  # so long a calm message waits for another one
DIED: Final = "its process ended without a word: it was killed, or it crashed"
DIED_WHOLE: Final = "its process and its daemon ended without a word: both were killed"


class TrainerAccount:
    """Of one trainer, as one daemon has heard it."""

    def __init__(self) -> None:
        self.phase = Phase.BOOTING
        self.generation = 0  # of the ring that the trainer sits in, or failed to enter
        self.began: int | None = None
        self.leases_of = 0
        self.data: DataSpec | None = None
        self.pause: Pause | None = None
        self.leaving = False
        self.reason = ""
        self.foreign = False
        self.missed = 0
        self.prepares = False
        self.sends_state = False
        self.state_bytes = 0
        self.prepared = (0, "")
        self.offer = 0  # of what is prepared
        self.marked = (0, 0)
        self.diverged: Divergence | None = None
        self.final: tuple[Fingerprint, ...] = ()
        self.joined = 0
        self.booted = False
        self.reported: dict[str, float] = {}
        self.copied = (0, "")  # the newest saving that the trainer is through with; why it has no part, if it has none
        self.saved_part: tuple[int, PartInfo | None] = (0, None)
        self.save_failed = (0, "")
        self.save_wanted = 0
        self.void: Void | None = None
        self.whereabouts: ScriptPlace | None = None

    @property
    def over(self) -> bool:
        """The script has ended, one way or the other."""
        return self.phase in (Phase.DONE, Phase.FAILED)

    def is_calm(self, message: say.FromTrainer) -> bool:
        """Of a message that comes next: the leader need not hear of it at once. This trainer has gone from one ring to
        the next as planned, and trains on by what came with the plan.
        """
        return isinstance(message, say.Entered) and self.phase is Phase.TRAINING

    def hear(self, message: say.FromTrainer) -> None:
        """Take a message of the trainer."""
        match message:
            case say.RehearsalBegan():  # alone, whatever first ring it has failed in before
                self.phase, self.generation = Phase.REHEARSING, 0
            case say.Rehearsed():
                self.phase, self.generation, self.booted = Phase.READY, 0, True
            case say.Entered(generation, began, leases_of, pause, awaits_state):
                self.began, self.leases_of, self.booted, self.void = began, leases_of, True, None
                if awaits_state:  # a newcomer still, whatever ring it has failed in before
                    self.phase, self.generation = Phase.READY, 0
                else:
                    self.phase, self.generation, self.pause = Phase.TRAINING, generation, pause
            case say.Broke(generation, _, reason):
                self.phase, self.generation, self.reason = Phase.BROKEN, generation, clipped(reason)
            case say.LeaveAsked():
                self.leaving = True
            case say.Ended(reason, foreign, state, joined):
                self.phase, self.reason = (Phase.FAILED if reason else Phase.DONE), clipped(reason)
                self.foreign, self.final, self.joined = foreign, state, joined
            case say.Voided(void):
                self.void = void
            case say.ScriptStands(whereabouts):
                self.whereabouts = whereabouts
            case say.GoingHeard():
                pass  # its daemon alone has to know
            case (
                say.Hello()
                | say.StateSized()
                | say.Opened()
                | say.Prepared()
                | say.Missed()
                | say.Marked()
                | say.Copied()
                | say.CopyMissed()
                | say.CheckpointWanted()
                | say.Diverged()
                | say.Figures()
            ):
                self._note(message)

    def _note(self, message: say.Notes) -> None:
        """What changes nothing in where the trainer sits."""
        match message:
            case say.Hello(_, prepares, sends_state):
                self.prepares, self.sends_state = prepares, sends_state
            case say.StateSized(size):
                self.state_bytes = size
            case say.Prepared(generation, failure, able, offer):
                self.prepared, self.offer = (generation, clipped(failure)), offer
                self.prepares = self.prepares and able
            case say.Opened(spec):
                self.data = spec
            case say.Figures(values):
                self.reported = values
            case say.Missed(generation):
                self.missed = generation
            case say.Marked(rebatch, step):
                self.marked = (rebatch, step)
            case say.Diverged(found):
                self.diverged = found
            case say.CheckpointWanted(step):
                self.save_wanted = step
            case say.Copied(number):
                self.copied = (number, "")
            case say.CopyMissed(number, reason):
                self.copied = self.save_failed = (number, clipped(reason))

    def stored(self, number: int, info: PartInfo) -> None:
        """What was copied for that saving is durable. A part that is late may come after that of a later saving."""
        if number > self.saved_part[0]:
            self.saved_part = (number, info)

    def not_stored(self, number: int, reason: str) -> None:
        """It will not be."""
        if number > self.save_failed[0]:
            self.save_failed = (number, clipped(reason))

    def died(self, reason: str) -> None:
        """The trainer's process is gone."""
        if not self.over:
            self.phase, self.reason = Phase.FAILED, reason
