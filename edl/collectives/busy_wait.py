"""The time for which a worker polls for a collective in Horovod's loop before it naps between two looks.

A nap makes the wait a little longer. Without naps the worker keeps a core busy, which no other worker
needs as long as there is one for each: a step's wait is over by then. Where a host has more workers than cores, it
takes the core from those that it waits for. So it does everywhere for a moment in each ring that begins: daemons agree
on it, other members come, one that crashed is started again.

Owns: that choice. Does not own: the naps (`_guard.cpp`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

LONG_S, SHORT_S = 0.05, 0.001  # where there is a core for each worker of this host, and where there is none
SETTLING_S = 0.5
NAME = "EDL_SPIN_MS"


class Spinning(NamedTuple):
    usual_s: float
    settling_s: float  # it is short for so long, in a ring that begins


def spinning(workers: int, environment: Mapping[str, str], cores: int | None = None) -> Spinning:
    """Choose for so many workers on this host. `edl.config` has checked the variable."""
    given = environment.get(NAME, "")
    if given:
        return Spinning(float(given) / 1000, 0.0)
    return Spinning(LONG_S if workers <= (cores or len(os.sched_getaffinity(0))) else SHORT_S, SETTLING_S)
