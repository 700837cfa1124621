"""The time in which nothing has moved in a ring that keeps this process waiting.

Neither Horovod nor gloo tells when a wait is to end. Horovod waits for ever for a member whose script hangs, as its
threads go on talking; gloo has a time-out of its own for each part of an operation. So edl looks at the ring now and
then, on a thread of its own: a usual step is not touched by that.

Owns: what is looked at, and what follows from one look after the other. Does not own: looking (the rings), nor how long
is too long (`edl.trainer.wait_bounds`).
"""

from __future__ import annotations

from typing import NamedTuple


class Pulse(NamedTuple):
    """A snapshot of what has moved in a ring."""

    waiting: int  # collectives that this process has begun, and that not all members have come to
    begun: int  # times that one was
    turns: int | None  # of the ring's own thread, which takes none while it waits or reduces; None: it has no thread
    bytes: int  # that have gone over the ring's connections, both ways


class Patience:
    """Follow how long a process waits in vain in its ring."""

    def __init__(self) -> None:
        self._at = (0, 0)
        self._last: Pulse | None = None
        self._moved_at = 0.0

    def look(self, at: tuple[int, int], pulse: Pulse | None, now: float) -> float:
        """Return the seconds for which nothing has moved in this generation and step (`at`). `pulse` None: no wait."""
        last, self._last = self._last, pulse
        if pulse is None or last is None or at != self._at or _moved(last, pulse):
            self._at, self._moved_at = at, now
        return now - self._moved_at


def _moved(last: Pulse, pulse: Pulse) -> bool:
    if pulse.turns is None and pulse.waiting == 0:
        return True
    if pulse.turns == last.turns:  # an operation may be under way for long, or a member's process says nothing
        return (pulse.bytes, pulse.begun) != (last.bytes, last.begun)
    return pulse.waiting == 0 or (pulse.waiting, pulse.begun) != (last.waiting, last.begun)
