"""A worker of several processes as its launcher holds it: they start, print and end together.

Owns: that a bad end of one is that of all, and which exit status is the worker's. Does not own: each process and its
output (`edl.launch.child_worker`), nor what follows from a worker's end (`edl.launch.supervisor`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from edl.launch.child_worker import Worker


class LimbProcesses:
    """The processes of one worker. The job knows it by the first."""

    def __init__(self, limbs: Sequence[Worker]) -> None:
        self.slot, self.pid = limbs[0].slot, limbs[0].pid
        self._limbs = list(limbs)
        self._running = len(self._limbs)
        self._code = 0  # of the first process that has ended badly

    @property
    def pids(self) -> list[int]:
        return [limb.pid for limb in self._limbs]

    def take_number(self, number: int) -> None:
        """Set the number in front of the lines to come."""
        for limb in self._limbs:
            limb.take_number(number)

    def when_exited(self, tell: Callable[[int, int], None]) -> None:
        """Call `tell` with slot and exit status once all processes have ended."""

        def ended(slot: int, code: int) -> None:
            self._running -= 1
            if code and not self._code:
                self._code = code
                self.signal(signal.SIGKILL)  # the others would wait for it
            if not self._running:
                tell(slot, self._code)

        for limb in self._limbs:
            limb.when_exited(ended)

    def signal(self, signum: signal.Signals) -> None:
        """Signal all processes that run, with their process groups."""
        for limb in self._limbs:
            limb.signal(signum)

    async def wait_printed(self, timeout_s: float) -> None:
        """Wait until the output of all has ended."""
        await asyncio.gather(*(limb.wait_printed(timeout_s) for limb in self._limbs))
