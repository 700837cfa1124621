"""A daemon's view of its trainer: the trainer's messages, combined with its words in the shared page."""

from __future__ import annotations

import math
from collections.abc import Callable

from edl.core.worker.account import DIED, TrainerAccount
from edl.protocol import link as say
from edl.protocol.driver import Word
from edl.protocol.figures import Usage
from edl.protocol.messages import Observation, Phase
from edl.protocol.saving import PartInfo
from edl.transport.page import Page

MEMORIES_S = (0.5, 20.0)  # time constants of the two mean step times: a value so old has lost 63 % of its weight


class Observer:
    """Combine messages and readings into one Observation; no clock, no socket."""

    def __init__(
        self,
        page: Page,
        refused: Callable[[], dict[str, int]] = dict,
        used: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
        halted: Callable[[], str] = str,
    ) -> None:
        """Keep the sources. `refused`: counts of refusals by the daemon. `used`: seconds of CPU and bytes of memory of
        the trainer. `halted`: what the system holds the trainer's process up by.
        """
        self._used, self._halted = used, halted
        self._page = page
        self._refused = refused
        self._account = TrainerAccount()
        self.met: tuple[int, ...] = (0,)  # presence of the workers called to a next ring, as this daemon has seen it
        self.dead: tuple[str, ...] = ()  # other workers of this host, as this daemon has seen
        self.driver: Word | None = None  # the newest report of the stand-in about horovodrun's driver
        self._step_times_s: tuple[float, ...] = (0.0, 0.0)
        self._sitting_s = self._computed_s = 0.0  # seconds in rings; and of these, neither waiting nor loading
        self._idle_before_s = self._idle_s()
        self._looked_at: float | None = None
        self._last: tuple[int, float] | None = None  # step and time of the newest measurement

    @property
    def generation(self) -> int:
        """The generation of the ring that the trainer is in, or failed to enter."""
        return self._account.generation

    @property
    def copied(self) -> int:
        """The newest saving whose copy the trainer has finished."""
        return self._account.copied[0]

    @property
    def broken(self) -> bool:
        """Tell whether the trainer's ring has failed, and it is in no other yet."""
        return self._account.phase is Phase.BROKEN

    @property
    def over(self) -> bool:
        """Tell whether the script has ended, well or not."""
        return self._account.over

    def is_calm(self, message: say.FromTrainer) -> bool:
        """Tell whether the leader need not learn at once of a message that the trainer has just sent."""
        return self._account.is_calm(message)

    def hear(self, message: say.FromTrainer) -> None:
        """Handle a message of the trainer."""
        self._account.hear(message)
        if isinstance(message, say.Entered):
            self._last = None

    def stored(self, number: int, info: PartInfo) -> None:
        """Note that the trainer's part of that saving is durable."""
        self._account.stored(number, info)

    def not_stored(self, number: int, reason: str) -> None:
        """Note that the trainer's part of that saving will not be durable."""
        self._account.not_stored(number, reason)

    def died(self) -> None:
        """Note that the trainer's process is gone."""
        self._account.died(DIED)

    def observe(self, now: float) -> Observation:
        """Return the observation of the trainer at time `now`."""
        self._measure(now)
        self._sit(now)
        account = self._account
        cpu_s, memory = self._used()
        usage = Usage(
            at=now,
            step=self._page.step,
            waited_s=self._page.waited_ns / 1e9,
            loaded_s=self._page.loaded_ns / 1e9,
            cpu_s=cpu_s,
            memory=memory,
            reported=account.reported,
            computed_s=self._computed_s,
        )
        return Observation(
            phase=account.phase,
            generation=account.generation,
            step=self._page.step,
            leases_of=account.leases_of,
            step_time_s=min(self._step_times_s),
            data=account.data,
            pause=account.pause,
            leaving=account.leaving,
            reason=account.reason,
            missed=account.missed,
            refused=self._refused(),
            driver=self.driver,
            usage=usage,
            marked=account.marked,
            diverged=account.diverged,
            final=account.final,
            joined=account.joined,
            booted=account.booted,
            prepares=account.prepares,
            sends_state=account.sends_state,
            state_bytes=account.state_bytes,
            prepared=account.prepared,
            offer=account.offer,
            met=self.met,
            saved_part=account.saved_part,
            save_failed=account.save_failed,
            save_wanted=account.save_wanted,
            foreign=account.foreign,
            dead=self.dead,
            void=account.void,
            began=account.began,
            whereabouts=account.whereabouts,
            halted=self._halted(),
            at=now,
        )

    def _idle_s(self) -> float:
        """Return how long the trainer has waited for peers and samples."""
        return (self._page.waited_ns + self._page.loaded_ns) / 1e9

    def _sit(self, now: float) -> None:
        """Count the seconds in rings, and those spent on computing."""
        last, self._looked_at = self._looked_at, now
        if last is not None and self._account.phase is Phase.TRAINING:
            self._sitting_s += now - last
            # A wait is known once it is over. Time counted as computing until then is not taken back, but offset by
            # later time: a counter must not shrink.
            self._computed_s = max(self._computed_s, self._sitting_s - (self._idle_s() - self._idle_before_s))

    def _measure(self, now: float) -> None:
        """Update the mean step times."""
        # Occasional readings are enough for a mean, and cost the trainer nothing. Of the two means the shorter one
        # counts: when a switch is planned, steps have been long for moments, as its ring was prepared, and are about to
        # be short.
        step, last = self._page.step, self._last
        if last is None:
            self._last = (step, now)
        elif step > last[0]:
            elapsed_s = now - last[1]
            newest, known = elapsed_s / (step - last[0]), all(self._step_times_s)
            weights = [1 - math.exp(-elapsed_s / memory_s) if known else 1.0 for memory_s in MEMORIES_S]
            means = zip(weights, self._step_times_s, strict=True)
            self._step_times_s = tuple(mean + weight * (newest - mean) for weight, mean in means)
            self._last = (step, now)
