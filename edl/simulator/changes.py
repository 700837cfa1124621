"""What a change of a job's workers costs it in a simulated cluster: seconds in which it does not train."""

from __future__ import annotations

from typing import Final

import msgspec

MEASURED: Final = "measured"
LONGEST_S: Final = 86_400.0


class ChangeCost(msgspec.Struct, frozen=True):
    """`begin_s`: its first workers boot. `resume_s`: it was preempted, and goes on from its checkpoint.

    `boot_s`: newcomers boot while the others train at their old pace. All of them then pause for `pause_s`.
    """

    begin_s: float
    resume_s: float
    boot_s: float
    pause_s: float

    def of(self, had: float, has: float, *, began: bool) -> float:
        """Seconds of training that it loses, at its pace after the change, `has`. Before it was `had`; 0: no worker."""
        if not had:
            return self.resume_s if began else self.begin_s
        return self.pause_s + self.boot_s * max(0.0, 1 - had / has)


def uniform(seconds: float) -> ChangeCost:
    return ChangeCost(seconds, seconds, 0.0, seconds)
