"""Pace the garbage collector of a daemon: Python's own pace suits neither a leader of a thousand workers nor of three.

Owns: the pace of the collector in a daemon's process. Does not own: the garbage.

Each call that gRPC serves leaves a cycle behind, and so does each connection to a rendezvous and each answer of kazoo.
By numbers alone a small job's leader would keep the cycles of ten minutes, some 10 MiB, and seem to leak.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Final

YOUNG: Final = 50_000  # new objects before Python collects these by itself
EVERY_S: Final = 10.0
SHARE: Final = 0.001  # upper bound of the share of time spent on collecting


def collect_seldom() -> None:
    """Collect rarely, and never the objects of the start."""
    # Python's default collects after each 700 new objects: a grant to a thousand workers would be interrupted 30 times.
    gc.freeze()
    gc.set_threshold(YOUNG)


async def collect_regularly(every_s: float = EVERY_S, collect: Callable[[], object] = gc.collect) -> None:
    """Collect all garbage periodically, until cancelled; less often if a collection takes long."""
    pause_s = every_s
    while True:
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        collect()
        pause_s = max(every_s, (time.monotonic() - began) / SHARE)
