"""How long is long, on a machine that may have other work."""

from __future__ import annotations

import os
from pathlib import Path


def patient(seconds: float) -> float:
    """What takes so long at most where every process has a core of its own, takes as much longer as they share one."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def set_pace(file: Path, step_s: str) -> None:
    """Change the pace of scripts that read it in each step: they never find the file half written."""
    coming = file.with_name("the next pace")
    coming.write_text(step_s)
    coming.rename(file)
