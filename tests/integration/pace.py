"""How long is long, on a machine that may have other work."""

from __future__ import annotations

import os


def patient(seconds: float) -> float:
    """What takes so long at most where every process has a core of its own, takes as much longer as they share one."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
