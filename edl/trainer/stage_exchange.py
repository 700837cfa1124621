"""The processes of one worker tell each other which tensors they hold, on the training thread.

Owns: when they do, and which stage this process belongs to. Does not own: what follows from what they tell
(`edl.checkpoints.worker_stages`), nor how it travels (`edl.trainer.limb_agreement.LimbRows`).

They are asked when a model, an optimizer or a loader of shards has come, at the next update. Where only the contents of
tensors tell whether processes are copies, these are compared again before updates 2, 4, 8, ..., as training changes
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from edl.checkpoints.worker_stages import Holding, WorkerStage, difference_within, stage_with, stages_of, whole
from edl.errors import UsageError


class HeldTensors(Protocol):
    """The tensors of this process."""

    def stamp(self) -> object:
        """Return what changes when there may be others: it costs little."""

    def holding(self) -> Holding:
        """Describe them."""

    def sample(self) -> str:
        """Return a digest of some of their elements. Any thread, while nothing changes them."""


class StageExchange:
    """The stage of this process, as the processes of its worker have found it."""

    def __init__(self, gather: Callable[[bytes], list[bytes]], limb: int, processes: int, held: HeldTensors) -> None:
        """`gather` returns what all processes of the worker give to it, by process."""
        self.stage: WorkerStage = whole(processes)
        self._gather = gather
        self._limb = limb
        self._held = held
        self._stamp: object = None  # of what was told
        self._updates = 0

    def is_due(self) -> bool:
        """Count an update that comes; tell whether this process has something to tell before it."""
        self._updates += 1
        again = self.stage.judged and not self._updates & (self._updates - 1)
        return again or self._stamp != self._held.stamp()

    def exchange(self) -> None:
        """Find the stages anew, with all processes of this worker. Raises JobFailed where one has ended, and on all of
        them UsageError where they would train wrongly.
        """
        self._stamp = self._held.stamp()
        told = self._gather(msgspec.msgpack.encode(self._held.holding()))
        holdings = [msgspec.msgpack.decode(one, type=Holding) for one in told]
        # Later the last bits may differ of what processes train beside each other on the same samples.
        if difference := difference_within(holdings, contents=self._updates == 1):
            raise UsageError(f"edl.Optimizer: {difference}")
        self.stage = stage_with(stages_of(holdings), self._limb)

    def witness(self) -> str:
        """Return what all processes of the stage have alike, if they are one by what their tensors contain."""
        return self._held.sample() if self.stage.judged else ""
