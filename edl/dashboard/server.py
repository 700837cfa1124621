"""The server of a job's page: starlette on uvicorn, on loopback.

Owns: what is answered to whom, and how many at a time. Does not own: who may look (`edl.dashboard.access`), what is
shown (`edl.dashboard.snapshot`), nor what a button does (`edl.dashboard.buttons`).

A browser that lost its connection asks with the number of the last event it has seen, and gets those after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from edl.dashboard import page, snapshot
from edl.dashboard.access import HEADERS, Access
from edl.dashboard.feed import Feed
from edl.dashboard.view import change_of, event_of
from edl.errors import ConfigError

SHIPPED: Final = Path(__file__).with_name("shipped")
FILES: Final = {
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
HEAD: Final = (
    '<link rel="icon" href="data:,"><link rel="stylesheet" href="uPlot.min.css">'
    '<link rel="stylesheet" href="page.css">'
    '<script src="uPlot.iife.min.js" defer></script><script src="page.js" defer></script>'
)
STREAMS: Final = 32  # browsers that are told as things happen
CONNECTIONS: Final = 128  # beyond which callers hear that it is too busy
MOST_CONNECTIONS: Final = 2 * CONNECTIONS  # beyond which they hear nothing
ASK_S: Final = 10.0  # for a connection to ask for something
FORM_BYTES: Final = 4096
DRAWN_EACH: Final = 3  # of so many looks, charts are drawn anew once
BEAT_S: Final = 5.0  # a word at least so often: a browser notices a dead connection, and we a browser that is gone
WRONG_NAME: Final = "this page answers to the address in its link only"
NOT_OPENED: Final = "open the link that `edl dashboard` has printed: it has the token of this page"
Act = Callable[[str], Awaitable[str]]


class PageServer:
    """Of one job. `act`: what the buttons do, by their names; None: there are none."""

    def __init__(self, feed: Feed, access: Access, act: Act | None = None) -> None:
        self._feed = feed
        self._access = access
        self._act = act
        self._said = ""
        self._streams = 0
        self._charts: tuple[tuple[int, int], page.Charts] | None = None  # of which look and event
        place = access.place
        routes = [
            Route("/", self._open),
            Route(f"{place}/", self._page),
            Route(f"{place}/events", self._events),
            Route(f"{place}/act", self._press, methods=["POST"]),
            *(Route(f"{place}/{name}", self._file) for name in FILES),
        ]
        self.app = Starlette(routes=routes)

    # ------------------------------------------------------------------------------------------------- what is asked

    def _refusal(self, request: Request) -> Response | None:
        if not self._access.names_us(request.headers.get("host", "")):
            return _plain(WRONG_NAME, 403)
        if not self._access.opens(request.cookies.get(self._access.cookie)):
            return _plain(NOT_OPENED, 403)
        return None

    async def _open(self, request: Request) -> Response:
        """The link: it trades its token for a cookie, and leads to the page."""
        token = request.query_params.get("token")
        if not self._access.names_us(request.headers.get("host", "")):
            return _plain(WRONG_NAME, 403)
        if token is None or not self._access.opens(token):
            return _plain(NOT_OPENED, 403)
        answer = RedirectResponse(f"{self._access.place}/", 303, headers=HEADERS)
        answer.set_cookie(self._access.cookie, token, httponly=True, samesite="lax", path=self._access.place)
        return answer

    async def _page(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if self._feed.status is None:
            return _plain("the job is not heard of yet; reload in a moment", 503)
        controls = None if self._act is None else page.Controls(self._access.check, self._said)
        shown = snapshot.view(self._feed), snapshot.newest(self._feed), self._drawn()
        return HTMLResponse(page.page(*shown, HEAD, controls), headers=HEADERS)

    async def _file(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        name = request.url.path.rpartition("/")[2]
        return Response((SHIPPED / name).read_bytes(), media_type=FILES[name], headers=HEADERS)

    async def _events(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if self._streams >= STREAMS:
            return _plain("too many look at this page just now", 503)
        given = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        after = int(given) if given.isdecimal() and len(given) < 12 else 0
        return StreamingResponse(self._tell(after), media_type="text/event-stream", headers=HEADERS)

    async def _tell(self, after: int) -> AsyncIterator[str]:
        self._streams += 1
        try:
            looks, changed = -1, False  # the ring, since charts were drawn
            while True:
                news = self._feed.news
                for number, flat in self._feed.after(after):
                    yield _happened(number, flat)
                    after, changed = number, changed or change_of(flat) is not None
                if self._feed.looks != looks and self._feed.status is not None:
                    looks = self._feed.looks
                    drawn = changed or looks % DRAWN_EACH == 0
                    changed = changed and not drawn
                    yield self._look(drawn=drawn)
                elif not news.is_set():
                    yield ": beat\n\n"
                await self._feed.wait(news, BEAT_S)
        finally:
            self._streams -= 1

    def _look(self, *, drawn: bool) -> str:
        """What has changed with another look at the job; `drawn`: with the charts, which are larger than all else."""
        view = snapshot.view(self._feed)
        parts = {
            "state": page.state(view),
            "tiles": page.tiles(view.tiles),
            "workers": page.workers(view.rows, view.more_workers),
            "data": page.bar(view.data, "samples"),
            "time": page.time_bar(view.time),
        }
        charts = msgspec.to_builtins(self._drawn()) if drawn or view.over else None
        return _message("look", {"parts": parts, "charts": charts, "over": view.over})

    def _drawn(self) -> page.Charts:
        """Once for all who look."""
        now = self._feed.looks, self._feed.count
        if self._charts is None or self._charts[0] != now:
            self._charts = now, snapshot.charts(self._feed)
        return self._charts[1]

    # ---------------------------------------------------------------------------------------------------- the buttons

    async def _press(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if self._act is None:
            return _plain("this page has no buttons: `edl dashboard --allow-scale` has", 403)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES:
                return _plain("too long", 413)
        form = parse_qs(body.decode("latin-1"))
        if not self._access.may_press(request.headers, form.get("check", [""])[0]):
            return _plain("this press of a button does not come from the page", 403)
        self._said = await self._act(form.get("do", [""])[0])
        return RedirectResponse(f"{self._access.place}/", 303, headers=HEADERS)

    # ------------------------------------------------------------------------------------------------------ its life

    async def serve(self, ear: socket.socket) -> None:
        """Until cancelled."""
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            http=_Bounded,
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=16_384,
        )
        server = _Quiet(config)
        serving = asyncio.create_task(server.serve([ear]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await serving


class _Bounded(H11Protocol):
    """One connection. uvicorn's own limits begin with the first answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._expect(None)

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        self._expect(answered)

    def _expect(self, before: RequestResponseCycle | None) -> None:
        """Another request than that, soon: until its head is there in full it does not count."""

        def look() -> None:
            if self.cycle is before and not self.transport.is_closing():
                self.transport.abort()

        self.loop.call_later(ASK_S, look)


class _Quiet(uvicorn.Server):
    """Signals are the command's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def listen(address: str, port: int) -> socket.socket:
    """Raises ConfigError."""
    try:
        return socket.create_server((address, port), backlog=CONNECTIONS)
    except OSError as error:
        raise ConfigError(
            f"--port {port}: cannot listen at {address}: {error.strerror}; choose another, or 0 for any"
        ) from None


def _happened(number: int, flat: dict[str, Any]) -> str:
    return _message("happened", {"html": page.row(event_of(number, flat)), "number": number}, number)


def _message(kind: str, value: Any, number: int | None = None) -> str:
    """A line of JSON holds no line break, so no text within ends the message."""
    ident = "" if number is None else f"id: {number}\n"
    return f"{ident}event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"


def _plain(text: str, code: int) -> Response:
    return PlainTextResponse(f"{text}\n", code, headers=HEADERS)
