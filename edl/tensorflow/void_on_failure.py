"""Stand between a collective that failed and the script that would have to handle it: the mini-batch is void (I8).

Eager code, `fit` and PyTorch have edl there anyway. What is inside a `tf.function` or a session cannot be caught
inside: TensorFlow has no `try` in a graph. So the script has one line around the call, `with edl.voidable():`.
"""

from __future__ import annotations

from types import TracebackType

import tensorflow as tf

from edl.collectives.horovod_ring import HorovodRing
from edl.collectives.library_guard import plain
from edl.errors import RingBroken
from edl.trainer.framework_port import StepPort


class Voidable:
    """Make the mini-batch void where something fails inside because a peer is gone; anything else is raised."""

    def __init__(self, trainer: StepPort, ring: HorovodRing) -> None:
        self._trainer, self._ring = trainer, ring

    def __enter__(self) -> None:
        if not tf.executing_eagerly():
            self._trainer.keep_in_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failed = isinstance(error, Exception) and self._ring.is_failure(error)
        if failed:
            self._trainer.void(RingBroken(f"the gradients were not averaged: {plain(str(error))}"))
        return failed
