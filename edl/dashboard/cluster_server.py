"""The server of the cluster's page, with the rules of a job's page (`edl.dashboard.access`).

Owns: the answers. Does not own: what is shown (`edl.dashboard.cluster_view`).

Each message has whole parts in their present form: a browser that lost its connection gets all parts with the next
message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from edl.dashboard.access import HEADERS, Access
from edl.dashboard.cluster_feed import ClusterFeed
from edl.dashboard.cluster_page import cluster_parts, page
from edl.dashboard.cluster_view import SPAN, SPANS, ClusterSight, cluster_sight
from edl.dashboard.site import BEAT_S, GuardedSite, message, plain


class ClusterPageServer(GuardedSite):
    """The server of one cluster's page."""

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
