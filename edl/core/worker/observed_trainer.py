"""A trainer as its daemon knows it: its newest status, and facts that the trainer does not know.

Owns: the trainer's death, a request to leave that does not come from it, and the end of each checkpoint part that it
has handed over. Does not own: the status (`edl.core.worker.worker_machine`), nor what is read from the shared page
(`edl.daemon.trainer_view`).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from edl.core.worker.next_move import NEVER, attention_step
from edl.protocol.assignment import Orders
from edl.protocol.checkpoint_record import PartInfo
from edl.protocol.leader_messages import Observation, Phase, TrainerFacts, clipped
from edl.protocol.trainer_messages import TrainerStatus

CALM_S: Final = 0.03  # so long calm news waits for other news
DIED: Final = "its process ended without a word: it was killed, or it crashed"
DIED_WHOLE: Final = "its process and its daemon ended without a word: both were killed"


class ObservedTrainer:
    def __init__(self) -> None:
        self.status = TrainerStatus()
        self.saved_part: tuple[int, PartInfo | None] = (0, None)
        self.save_failed = (0, "")
        self._is_to_leave = False
        self._death = ""

    def hear(self, status: TrainerStatus) -> bool:
        """Take the trainer's status in place of the one before; return whether the leader need not hear of it at
        once.
        """
        before, self.status = self.status, status
        if self._is_to_leave and not status.leaving:
            self.status = replace(self.status, leaving=True)
        if self._death and not status.over:
            self.status = replace(self.status, phase=Phase.FAILED, reason=self._death)
        if status.copied.failure:
            self.not_stored(status.copied.number, status.copied.failure)
        return is_calm(before, self.status)

    def attention_step(self, orders: Orders | None) -> int:
        return NEVER if orders is None else attention_step(self.status.generation, orders, self.status.copied.number)

    def stored(self, number: int, info: PartInfo) -> None:
        """Note that the copy for that saving is durable. A late part may come after that of a later saving."""
        if number > self.saved_part[0]:
            self.saved_part = (number, info)

    def not_stored(self, number: int, reason: str) -> None:
        if number > self.save_failed[0]:
            self.save_failed = (number, clipped(reason))

    def is_to_leave(self) -> None:
        """Note that the worker is asked to leave, whatever its trainer knows of that."""
        self._is_to_leave = True
        self.hear(self.status)

    def died(self, reason: str) -> None:
        self._death = reason
        self.hear(self.status)

    def observation(self, **more: Any) -> Observation:
        """`more` are the facts that the daemon reads elsewhere."""
        facts = {name: getattr(self.status, name) for name in TrainerFacts.__struct_fields__}
        return Observation(**facts, saved_part=self.saved_part, save_failed=self.save_failed, **more)


def has_entered(before: TrainerStatus, now: TrainerStatus) -> bool:
    """Tell whether the trainer has entered a ring, or, as a newcomer, has got the state in it."""
    stands = now.began is not None and now.phase in (Phase.READY, Phase.TRAINING)
    return stands and (now.generation, now.began) != (before.generation, before.began)


def is_calm(before: TrainerStatus, now: TrainerStatus) -> bool:
    """Tell whether the leader need not hear of `now` at once: nothing has changed but the ring, as planned, and the
    trainer trains there by the leases that came with the plan.
    """
    if not before.phase is now.phase is Phase.TRAINING or now.generation == before.generation:
        return False
    there = replace(before, generation=now.generation, began=now.began, leases_of=now.leases_of, pause=now.pause)
    return there == now
