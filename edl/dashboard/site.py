"""The common part of all pages' servers: the link that opens a page, the page's files, the refusal of other requests,
and how many browsers get live messages.

Owns: these answers, and serving until cancelled. Does not own: the rules (`edl.dashboard.access`), nor the pages.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from edl.dashboard.access import HEADERS, Access
from edl.host.http_serving import serve

SHIPPED: Final = Path(__file__).with_name("shipped")
FILES: Final = {
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "cluster.js": "text/javascript; charset=utf-8",
    "cluster.css": "text/css; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
WRONG_NAME: Final = "this page answers to the address in its link only"
NOT_OPENED: Final = "open the link that `edl dashboard` has printed: it has the token of this page"


STREAMS: Final = 32  # browsers that get live messages
BEAT_S: Final = 5.0  # longest time without a message, so that browser and server notice a dead connection
Answer = Callable[[Request], Awaitable[Response]]


class GuardedSite:
    """The site of one page. Only the link is answered without the cookie."""

    def __init__(self, access: Access, answers: dict[str, Answer], pressed: Answer | None = None) -> None:
        """`answers`: by the name of what is read below the page's place. `pressed` answers a press of a button."""
        self._access = access
        self._streams = 0
        routes = [self._guarded(name, answer) for name, answer in (answers | dict.fromkeys(FILES, self._file)).items()]
        if pressed is not None:
            routes.append(self._guarded("act", pressed, "POST"))
        self.app = Starlette(routes=[Route("/", self._open), *routes])

    def _guarded(self, name: str, answer: Answer, method: str = "GET") -> Route:
        async def guarded(request: Request) -> Response:
            if not self._access.names_us(request.headers.get("host", "")):
                return plain(WRONG_NAME, 403)
            if not self._access.opens(request.cookies.get(self._access.cookie)):
                return plain(NOT_OPENED, 403)
            return await answer(request)

        return Route(f"{self._access.place}/{name}", guarded, methods=[method])

    def streamed(self, messages: AsyncIterator[str]) -> Response:
        """Answer with live messages, unless too many browsers get them."""
        if self._streams >= STREAMS:
            return plain("too many look at this page just now", 503)
        return StreamingResponse(self._counted(messages), media_type="text/event-stream", headers=HEADERS)

    async def _counted(self, messages: AsyncIterator[str]) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async for each in messages:
                yield each
        finally:
            self._streams -= 1

    async def _open(self, request: Request) -> Response:
        """Answer the link: trade its token for a cookie, and redirect to the page."""
        token = request.query_params.get("token")
        if not self._access.names_us(request.headers.get("host", "")):
            return plain(WRONG_NAME, 403)
        if token is None or not self._access.opens(token):
            return plain(NOT_OPENED, 403)
        answer = RedirectResponse(f"{self._access.place}/", 303, headers=HEADERS)
        answer.set_cookie(self._access.cookie, token, httponly=True, samesite="lax", path=self._access.place)
        return answer

    async def _file(self, request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        return Response((SHIPPED / name).read_bytes(), media_type=FILES[name], headers=HEADERS)

    async def serve(self, ear: socket.socket) -> None:
        """Serve the site until cancelled."""
        await serve(self.app, ear)


def message(kind: str, value: Any, number: int | None = None) -> str:
    """Make a server-sent event. JSON without indentation has no line break, so no text in it ends the message."""
    ident = "" if number is None else f"id: {number}\n"
    return f"{ident}event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"


def plain(text: str, code: int) -> Response:
    return PlainTextResponse(f"{text}\n", code, headers=HEADERS)
