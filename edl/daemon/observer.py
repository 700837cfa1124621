"""What a daemon knows of its trainer: the trainer's words, folded with what it writes into the shared page."""

from __future__ import annotations

import math
from collections.abc import Callable

from edl.protocol import link as say
from edl.protocol.data import DataSpec
from edl.protocol.divergence import Divergence
from edl.protocol.driver import Word
from edl.protocol.figures import Usage
from edl.protocol.messages import Observation, Pause, Phase, clipped
from edl.transport.page import Page

MEMORY_S = 0.5  # what is so old has lost 63 % of its weight in the mean step time


class Observer:
    """Folds messages and readings into one Observation; no clock, no socket."""

    def __init__(
        self,
        page: Page,
        refused: Callable[[], dict[str, int]] = dict,
        used: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
    ) -> None:
        """`refused`: what the daemon has refused so far. `used`: seconds of CPU and bytes of memory, by the trainer."""
        self._used = used
        self._page = page
        self._refused = refused
        self._phase = Phase.BOOTING
        self._generation = 0
        self._leases_of = 0
        self._data: DataSpec | None = None
        self._pause: Pause | None = None
        self._leaving = False
        self._reason = ""
        self._missed = 0
        self._marked = (0, 0)
        self._diverged: Divergence | None = None
        self._booted = False
        self._reported: dict[str, float] = {}
        self.met: tuple[int, ...] = (0,)  # what our daemon has seen of those who are called to a next ring
        self.driver: Word | None = None  # what the stand-in has said of horovodrun's driver
        self._step_time_s = 0.0
        self._last: tuple[int, float] | None = None  # step and time of the newest measurement

    @property
    def generation(self) -> int:
        """Of the ring that the trainer sits in, or failed to enter."""
        return self._generation

    @property
    def over(self) -> bool:
        """The script has ended, one way or the other."""
        return self._phase in (Phase.DONE, Phase.FAILED)

    def hear(self, message: say.FromTrainer) -> None:
        """Take a message of the trainer."""
        match message:
            case say.Hello():
                pass  # who it is, not what it does
            case say.RehearsalBegan():
                self._phase = Phase.REHEARSING
            case say.Rehearsed():
                self._phase, self._booted = Phase.READY, True
            case say.Entered(generation, _, leases_of, pause):
                self._phase, self._generation, self._pause = Phase.TRAINING, generation, pause
                self._leases_of, self._booted = leases_of, True
                self._last = None
            case say.Broke(generation, _, reason):
                self._phase, self._generation, self._reason = Phase.BROKEN, generation, clipped(reason)
            case say.LeaveAsked():
                self._leaving = True
            case say.Ended(reason):
                self._phase, self._reason = (Phase.FAILED if reason else Phase.DONE), clipped(reason)
            case say.Opened() | say.Missed() | say.Marked() | say.Diverged() | say.Figures():
                self._note(message)

    def _note(self, message: say.Notes) -> None:
        """What changes nothing in where the trainer sits."""
        match message:
            case say.Opened(spec):
                self._data = spec
            case say.Figures(values):
                self._reported = values
            case say.Missed(generation):
                self._missed = generation
            case say.Marked(recut, step):
                self._marked = (recut, step)
            case say.Diverged(found):
                self._diverged = found

    def died(self) -> None:
        """The trainer's process is gone."""
        if not self.over:
            self._phase, self._reason = Phase.FAILED, "its process ended without a word: it was killed, or it crashed"

    def observe(self, now: float) -> Observation:
        """The trainer at time `now`."""
        self._measure(now)
        cpu_s, memory = self._used()
        usage = Usage(
            at=now,
            step=self._page.step,
            waited_s=self._page.waited_ns / 1e9,
            loaded_s=self._page.loaded_ns / 1e9,
            cpu_s=cpu_s,
            memory=memory,
            reported=self._reported,
        )
        return Observation(
            phase=self._phase,
            generation=self._generation,
            step=self._page.step,
            leases_of=self._leases_of,
            step_time_s=self._step_time_s,
            data=self._data,
            pause=self._pause,
            leaving=self._leaving,
            reason=self._reason,
            missed=self._missed,
            refused=self._refused(),
            driver=self.driver,
            usage=usage,
            marked=self._marked,
            diverged=self._diverged,
            booted=self._booted,
            met=self.met,
            at=now,
        )

    def _measure(self, now: float) -> None:
        """A look now and then is enough for a mean, and costs the trainer nothing."""
        step, last = self._page.step, self._last
        if last is None:
            self._last = (step, now)
        elif step > last[0]:
            elapsed_s, mean = now - last[1], self._step_time_s
            newest = elapsed_s / (step - last[0])
            weight = 1 - math.exp(-elapsed_s / MEMORY_S) if mean else 1.0
            self._step_time_s = mean + weight * (newest - mean)
            self._last = (step, now)
