"""The server of the cluster's page, with the rules of a job's page (`edl.dashboard.site`).

Owns: the answers, and reading the queue and the nodes once a second, however many browsers are open. Does not own: what
is shown (`edl.dashboard.cluster_page`).

Each message has whole parts in their present form: a browser that lost its connection gets all parts with the next
message.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from edl.cluster.queue.job_view import JobShown, shown
from edl.cluster.queue.queue_entries import JobEntry
from edl.dashboard.cluster_page import SPAN, SPANS, ClusterSight, cluster_parts, cluster_sight, page
from edl.dashboard.site import BEAT_S, HEADERS, Access, GuardedSite, message, plain
from edl.errors import EdlError
from edl.scheduler.cluster_client import ClusterClient, ClusterStatus, opened
from edl.scheduler.cluster_home import ClusterHome

LOOK_S: Final = 1.0

ClusterSeen = tuple[ClusterStatus, tuple[JobShown, ...]]
Look = Callable[[], Awaitable[ClusterSeen]]


class ClusterFeed:
    """Run it as a task."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self.seen: ClusterSeen | None = None
        self.at = 0.0
        self.looks = 0
        self.away = ""  # why the last read failed
        self._news = asyncio.Event()

    @property
    def news(self) -> asyncio.Event:
        """An event that is set after the next read. Take it before reading `seen`."""
        return self._news

    async def heard(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.seen is None:
                    await self._news.wait()
        return self.seen is not None

    async def run(self) -> None:
        while True:
            try:
                self.seen, self.at, self.away = await self._look(), time.time(), ""
            except (EdlError, OSError) as error:
                self.away = str(error)
            self.looks += 1
            self._news.set()
            self._news = asyncio.Event()
            await asyncio.sleep(LOOK_S)


class LooksHere:
    """Keep one session to this machine's cluster as long as it works."""

    def __init__(self, home: ClusterHome) -> None:
        self._home = home
        self._stack = contextlib.AsyncExitStack()
        self._client: ClusterClient | None = None
        self._over: dict[str, JobEntry] = {}  # ended jobs, which do not change any more

    async def __call__(self) -> ClusterSeen:
        try:
            if self._client is None:
                self._client = await self._stack.enter_async_context(opened(self._home))
            jobs = await self._jobs(self._client)
            status = await self._client.status(jobs)
        except EdlError:
            await self.close()
            raise
        now = time.time()
        return status, tuple(shown(job, now) for job in jobs)

    async def _jobs(self, client: ClusterClient) -> list[JobEntry]:
        names = await client.queue.names()
        self._over = {name: self._over[name] for name in names if name in self._over}
        jobs = [*self._over.values(), *await client.queue.some([name for name in names if name not in self._over])]
        self._over |= {job.name: job for job in jobs if job.over and not job.workers}
        return sorted(jobs, key=lambda job: (job.asked.submitted, job.name))

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()


class ClusterPageServer(GuardedSite):
    def __init__(self, feed: ClusterFeed, access: Access) -> None:
        super().__init__(access, {"": self._page, "events": self._events})
        self._feed = feed
        self._made: dict[int, tuple[int, dict[str, str]]] = {}  # by span: the number of the read, and the parts

    async def _page(self, request: Request) -> Response:
        if (view := self._view(_span(request))) is None:
            return plain("the cluster is not heard of yet; reload in a moment", 503)
        return HTMLResponse(page(view), headers=HEADERS)

    async def _events(self, request: Request) -> Response:
        return self.streamed(self._tell(_span(request)))

    async def _tell(self, span: int) -> AsyncIterator[str]:
        told: dict[str, str] = {}
        while True:
            news = self._feed.news
            if self._feed.away:
                yield message("away", {"words": "the cluster does not answer"})
            elif parts := self._parts(span):
                yield message("look", {"parts": {key: part for key, part in parts.items() if told.get(key) != part}})
                told = parts
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await news.wait()

    def _parts(self, span: int) -> dict[str, str]:
        """Make the parts once per read for all browsers with that span; return {} if the cluster
        has not been read yet.
        """
        looks = self._feed.looks
        if span not in self._made or self._made[span][0] != looks:
            view = self._view(span)
            self._made[span] = looks, {} if view is None else cluster_parts(view)
        return self._made[span][1]

    def _view(self, span: int) -> ClusterSight | None:
        seen = self._feed.seen
        return None if seen is None else cluster_sight(*seen, self._feed.at, span)


def _span(request: Request) -> int:
    given = request.query_params.get("span", "")
    return next((seconds for seconds in SPANS.values() if given == str(seconds)), SPAN)
