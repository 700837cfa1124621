"""An event loop in a thread of its own, in which a synchronous caller has its coroutines run.

The process has one such thread, so that calls work in notebooks and inside other loops, sessions stay alive between
calls, and gRPC meets one loop only.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from edl import ownership

T = TypeVar("T")


class LoopThread:
    """A thread that runs an event loop until the process ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="edl-client", daemon=True)

    def start(self) -> None:
        self._thread.start()
        ownership.at_exit(self._stop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return its result. An interrupt of the caller (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._loop.close()


@functools.cache
def loop_thread() -> LoopThread:
    """Return the process's only LoopThread; the first call starts it."""
    thread = LoopThread()
    thread.start()
    return thread
