"""The events of a job as they happen, in a thread of their own: for benchmarks that strike at a moment.

Owns: hearing them from the coordinator, where they are first. `edl.client.Job.follow` may be a second later, as it
reads what the launcher has kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType

from edl.config import Given, Settings
from edl.errors import EdlError
from edl.events import Event, Kind
from edl.launch.whereabouts import Whereabouts, locate

AGAIN_S = 0.1


class EventWatch:
    """A context: it follows until it is left. `heard` only grows."""

    def __init__(self, job: str, home: str) -> None:
        settings = Settings.from_given({"job": Given(job, "job")}, {"EDL_HOME": home})
        self._where = locate(settings)
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)
        self.heard: list[Event] = []
        self.heard_at: list[float] = []  # seconds since 1970

    def __enter__(self) -> EventWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError):  # the job is over, and the loop closed
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10.0)

    def wait(self, true: Callable[[Event], bool], after: int, patience_s: float) -> Event | None:
        """The first such event beyond the first `after` ones; None if there is none in time."""

        def found() -> Event | None:
            return next((event for event in self.heard[after:] if true(event)), None)

        with self._news:
            return self._news.wait_for(found, patience_s)

    def wait_kind(self, kind: Kind, after: int, patience_s: float) -> Event | None:
        return self.wait(lambda event: event.kind is kind, after, patience_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._follow(self._where))
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    async def _follow(self, where: Whereabouts) -> None:
        while True:
            try:
                async with where.client() as client:
                    async for event in client.follow(len(self.heard)):
                        with self._news:
                            self.heard.append(event)
                            self.heard_at.append(time.time())
                            self._news.notify_all()
                return  # the job is over
            except EdlError:  # the coordinator is away
                await asyncio.sleep(AGAIN_S)


def wait_true(true: Callable[[], bool], patience_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
