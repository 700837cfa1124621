"""When a daemon looks for garbage: Python's own pace suits neither a leader of a thousand workers nor one of three.

Owns: the pace of the collector in a daemon's process. Does not own: what is garbage.

Each call that gRPC serves leaves a cycle behind, and so does each connection to a rendezvous and each answer of kazoo.
By numbers alone a small job's leader would keep those of ten minutes, some 10 MiB, and look as if it leaked.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Final

YOUNG: Final = 50_000  # new objects before Python looks for garbage among them of its own accord
EVERY_S: Final = 10.0
SHARE: Final = 0.001  # of the time, for looking


def collect_seldom() -> None:
    """Python looks for garbage after each 700 new objects; a grant to a thousand workers would be held up 30 times."""
    gc.freeze()
    gc.set_threshold(YOUNG)


async def collect_regularly(every_s: float = EVERY_S, collect: Callable[[], object] = gc.collect) -> None:
    """Look at all there is, in between, until cancelled. Where that takes long, more seldom."""
    pause_s = every_s
    while True:
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        collect()
        pause_s = max(every_s, (time.monotonic() - began) / SHARE)
