"""Decide when a worker copies its state for a checkpoint: after the announced step, or it says that it cannot.

All members of a ring have the same model after a step, and their copies are one only if all are of that step. So a
worker copies at the end of just that mini-batch, in the ring that the saving was announced to, or not at all. A word
that comes late costs a checkpoint, never a mini-batch: the leader announces another one.

Where a job is to go and its members make no steps (an evaluation, a pipeline that waits, a long step), a saving is of
the step at which they *stand*. What each has is still that of this step until its next update begins, so it is copied
then and there. So it is where what is left of several workers is to save the job, whatever they were about.

Owns: which saving this worker is through with, and what its script has asked for. Does not own: when a job is saved
(`edl.core.checkpoint`), nor copying: a shell does that beside the next mini-batch, before its update.
"""

from __future__ import annotations

from edl.core.worker.worker_inputs import Command, CopyFailed, CopyTaken, TakeCopy, TellDaemon
from edl.protocol.checkpoint_record import Save
from edl.protocol.leader_messages import clipped
from edl.protocol.trainer_messages import CopiedPart

LATE = "the word came after its step"
ELSEWHERE = "its ring was over before that step"
LACKING = "what is left of it has not the state of that step"


class CheckpointPart:
    def __init__(self) -> None:
        self.newest = 0  # the saving that it has begun to copy for, or cannot
        self.copied = CopiedPart()  # the newest that it is through with
        self.wanted = 0  # the newest step after which the script has asked for a checkpoint

    def want(self, step: int) -> list[Command]:
        """Ask once that the job be saved, however often the script says so in `step`, which it works on."""
        if self.wanted >= step:
            return []
        self.wanted = step
        return [TellDaemon()]

    def heed(
        self, save: Save | None, generation: int, step: int, *, between: bool, works: bool = False
    ) -> list[Command]:
        """Act on the order `save`, having applied `step` in the ring of `generation`.

        `between`: the worker is at the end of that mini-batch, and has begun no other. `works`: it has.
        """
        if save is None or save.number <= self.newest:
            return []
        if save.limbs:  # nothing of it changes any more, whichever ring it was about to enter
            has_it = works and step == save.after_step
            return self._copy(save, beside=True) if has_it else self._miss(save.number, LACKING)
        return self._heed_in_ring(save, generation, step, between=between, works=works)

    def _heed_in_ring(self, save: Save, generation: int, step: int, *, between: bool, works: bool) -> list[Command]:
        if generation < save.generation:
            return []
        if generation > save.generation:
            return self._miss(save.number, ELSEWHERE)
        if step > save.after_step:
            return self._miss(save.number, LATE)
        if step < save.after_step or not (between or works):
            return []
        if works and not save.stands:
            return self._miss(save.number, LATE)
        return self._copy(save, beside=works)

    def _copy(self, save: Save, *, beside: bool) -> list[Command]:
        self.newest = save.number
        return [TakeCopy(save, beside=beside)]

    def take(self, happened: CopyTaken | CopyFailed) -> list[Command]:
        """Report the outcome of a copy, unless another saving has followed."""
        if happened.number != self.newest or self.copied.number == self.newest:
            return []
        if isinstance(happened, CopyFailed):
            return self._miss(happened.number, happened.reason or "no reason was given")
        self.copied = CopiedPart(happened.number, happened.files, happened.stall_ms)
        return [TellDaemon()]

    def _miss(self, number: int, reason: str) -> list[Command]:
        self.newest, self.copied = number, CopiedPart(number, failure=clipped(reason))
        return [TellDaemon()]
