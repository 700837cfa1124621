"""The wait of a trainer in its ring, and the words for a ring in which it has waited in vain.

Owns: the newest wait, and giving up a ring for it. Does not own: how long is too long (`edl.trainer.wait_bounds`), nor
what follows (`edl.trainer.worker_shell`).
"""

from __future__ import annotations

from typing import NamedTuple

from edl.trainer.framework_port import Framework


class RingWait(NamedTuple):
    """The wait of a trainer in the ring of a generation."""

    generation: int = 0
    what: str = ""  # empty: nothing, or not for long
    waited_s: float = 0.0  # after so long without any movement it has given that ring up; 0.0: it has not

    @property
    def told(self) -> str:
        """Say why that ring is broken, if it was given up here."""
        if not self.waited_s:
            return ""
        return f"not all members came to {self.what or 'a collective'} in {self.waited_s:g} s (--step-timeout)"


class RingWaits:
    """The waits of one trainer. Any thread."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self.newest = RingWait()

    def give_up(self, wait: RingWait) -> None:
        """Cut a ring in which nothing has moved for too long: the thread that waits there gets RingBroken."""
        self.newest = wait
        self._framework.ring.abort(range(wait.generation, wait.generation + 1))

    def here(self) -> RingWait:
        """Return the wait of this worker in the ring where it sits now."""
        newest = self.newest
        place = self._framework.ring.place if newest.generation else None
        return RingWait() if place is None or place.generation != newest.generation else newest

    def in_vain(self) -> str:
        """Say for people what this worker has waited for in its ring, if that is broken."""
        here = self.here()
        if not here.what or self._framework.ring.pulse() is not None:
            return ""
        return here.told or f"it had waited for {here.what}, to which not all members came"

    def why(self, error: BaseException) -> str:
        """Say why a collective has failed. If this worker has cut the ring, the error does not know the reason."""
        return self.here().told or str(error) or repr(error)
