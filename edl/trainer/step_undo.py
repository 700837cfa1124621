"""Undoing what a mini-batch that does not count would leave behind, at its end (I8, I13).

Owns: what is remembered of which mini-batch. Does not own: which are of stand-ins, or void
(`edl.trainer.worker_shell`).

A worker without samples of its own computes on some that others train, the first of the epoch again and again.
Its gradients weigh nothing; what its forward passes update by themselves (batch norm) would, once a switch makes it
that of all. Where no worker has any, or the gradients could not be averaged, the script's own schedule must not go on
either, nor what else is registered.
"""

from __future__ import annotations

from collections.abc import Callable

from edl.trainer.framework_port import Framework
from edl.trainer.registered_state import RegisteredState


class StepUndo:
    """Remember state for one mini-batch at a time."""

    def __init__(self, framework: Framework, extras: RegisteredState) -> None:
        self._framework = framework
        self._extras = extras
        self._statistics = False
        self.merges = False  # statistics are those of all workers' samples: what stand-ins made of them is gone by then
        self._put_extras_back: Callable[[], None] | None = None

    def keep_statistics(self, *, of_nobody: bool) -> None:
        """Remember statistics before forward passes of stand-ins. `of_nobody`: no worker has samples."""
        if not self._statistics and (of_nobody or not self.merges):
            self._statistics = True
            self._framework.keep(only_statistics=not of_nobody)

    def keep_registered(self) -> None:
        """Remember registered values, if no worker has samples or the mini-batch is void, before gradients are used.

        Not earlier than the script has come to its gradients: what it does between two mini-batches, at the end of an
        epoch say, is no part of either.
        """
        if self._put_extras_back is None:
            self._framework.keep_hyper_parameters()
            self._put_extras_back = self._extras.remember(self._framework)

    def drop(self) -> None:
        # A pipeline's thread had asked for the samples of a mini-batch, and the others went past it: it never came.
        if self._statistics or self._put_extras_back is not None:
            self._statistics, self._put_extras_back = False, None
            self._framework.drop_kept()

    def put_back(self) -> None:
        """End the mini-batch: the forward pass of one of stand-ins leaves nothing behind, nor does what the script did
        after its gradients in a void one.
        """
        put_extras_back, self._put_extras_back = self._put_extras_back, None
        if self._statistics or put_extras_back is not None:
            self._statistics = False
            self._framework.put_back()
        if put_extras_back is not None:
            put_extras_back()
