"""GPUs of this machine, found without a framework, and those of them that the processes of one worker have.

Owns: what NVIDIA's driver and CUDA_VISIBLE_DEVICES say, and which GPUs another worker of several processes takes. Does
not own: who has which (`edl.launch.local_launch`), nor the devices of a cluster's workers (`edl.scheduler`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
DRIVER: Final = Path("/proc/driver/nvidia/gpus")  # has a folder for each GPU, in a container for those of its own


def count_gpus(driver: Path = DRIVER) -> int:
    return len(list(driver.iterdir())) if driver.is_dir() else 0


def visible_gpus(environ: Mapping[str, str], found: int) -> tuple[str, ...]:
    """Return the names of the GPUs that a program of CUDA's sees, of `found` ones, in its order."""
    told = environ.get(VISIBLE)
    if told is None:
        return tuple(map(str, range(found)))
    names = (name.strip() for name in told.split(","))
    # CUDA ends the list at the first name that is none, such as -1.
    return tuple(takewhile(re.compile(r"\d+|(GPU|MIG)-.+").fullmatch, names))


def choose_gpus(visible: Sequence[str], processes: int, taken: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the GPUs of one more worker, one for each of its processes: free ones, else those that the fewest workers
    have; () where the machine has fewer. `taken` has those of each living worker.
    """
    blocks = [tuple(visible[at : at + processes]) for at in range(0, len(visible) - processes + 1, processes)]
    return min(blocks, key=taken.count, default=())


def told_of(visible: Sequence[str], processes: int, taken: Sequence[tuple[str, ...]]) -> str:
    """Say what one more worker lacks; empty if it has GPUs of its own, or the machine has none."""
    chosen = choose_gpus(visible, processes, taken)
    if not visible or (chosen and chosen not in taken):
        return ""
    if not chosen:
        return (
            f"CUDA_VISIBLE_DEVICES stays as it is: {len(visible)} of this machine's GPUs can be seen, and a worker has "
            f"{processes} processes"
        )
    return (
        f"one more worker takes GPUs {','.join(chosen)}, which another worker has: {len(visible)} of this machine's "
        f"GPUs can be seen, and a worker has {processes} processes"
    )
