"""What a mini-batch of stand-ins would leave behind: remembered before it, and put back at its end (I13).

Owns: what is remembered of which mini-batch. Does not own: which are of stand-ins (`edl.runtime.sitting`).

A worker without samples of its own computes on some that others train, the first of the epoch again and again.
Its gradients weigh nothing; what its forward passes update by themselves (batch norm) would, once a switch makes it
everybody's. Where nobody has samples, the script's own schedule must not go on either, nor what else is registered.
"""

from __future__ import annotations

from collections.abc import Callable

from edl.runtime.extras import Extras
from edl.runtime.framework import Framework


class Kept:
    """Of one mini-batch at a time."""

    def __init__(self, framework: Framework, extras: Extras) -> None:
        self._framework = framework
        self._extras = extras
        self._put_back: list[Callable[[], None]] = []

    def keep(self, *, everything: bool) -> None:
        """The coming mini-batch is one of stand-ins: of this worker, or of all (`everything`)."""
        if self._put_back:
            return
        self._framework.keep(only_statistics=not everything)
        self._put_back.append(self._framework.put_back)
        if everything:
            self._put_back.append(self._extras._remember(self._framework))

    def put_back(self) -> None:
        """That mini-batch is over."""
        put_back, self._put_back = self._put_back, []
        for one in put_back:
            one()
