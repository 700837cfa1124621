"""The common part of all pages' servers: who may see a page and press its buttons, its files, and how many browsers
get live messages.

A link with a token opens the page, and sets a cookie, so that no later address has the token. The cookie is limited to
the page's own path, because browsers send a cookie of "/" to every server on this host, at any port. All other requests
are refused: without the token, by another name of this host (a page that rebinds its name to ours), and a press of a
button that does not come from the page itself.

Owns: these rules and answers, and serving until cancelled. Does not own: the pages.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from edl.host.http_serving import serve

HTTP_PORT: Final = 80
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without any referrer, the page's form would have the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access(msgspec.Struct, frozen=True):
    """The access of one page, on one port."""

    token: str
    port: int
    address: str = "127.0.0.1"

    @classmethod
    def fresh(cls, port: int, address: str) -> Access:
        return cls(secrets.token_urlsafe(32), port, address)

    @property
    def link(self) -> str:
        return f"http://{self.address}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies do not know ports, and another job's page may be open beside this one."""
        return f"edl-{self.port}"

    @property
    def place(self) -> str:
        """The path of the page, which only a browser that had the token knows."""
        return f"/{self._derived(b'place')[:32]}"

    @property
    def check(self) -> str:
        """A secret in the page's own forms, which only a reader of the page knows."""
        return self._derived(b"forms")

    def _derived(self, use: bytes) -> str:
        return hmac.new(self.token.encode(), use, hashlib.sha256).hexdigest()

    def names_us(self, host: str) -> bool:
        """Tell whether the request's Host is this page's. Browsers leave out the default port of HTTP."""
        names = {self.address, "127.0.0.1", "localhost"}
        return host in {f"{name}:{self.port}" for name in names} or (self.port == HTTP_PORT and host in names)

    def opens(self, given: str | None) -> bool:
        """Tell whether `given` is the token, as a link or a cookie has it."""
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def may_press(self, headers: Mapping[str, str], check: str) -> bool:
        """Tell whether a press comes from this page: by the browser's headers, and by the secret in the form."""
        origin = headers.get("origin", "")
        site = headers.get("sec-fetch-site", "same-origin")
        ours = site == "same-origin" and self.names_us(origin.removeprefix("http://"))
        return ours and hmac.compare_digest(check.encode(), self.check.encode())


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
    """Only the link is answered without the cookie."""

    def __init__(self, access: Access, answers: dict[str, Answer], pressed: Answer | None = None) -> None:
        """`answers`: by the name that follows the page's place in the path. `pressed` answers a press of a button."""
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
        await serve(self.app, ear)


def message(kind: str, value: Any, number: int | None = None) -> str:
    """Make a server-sent event. JSON without indentation has no line break, so no text in it ends the message."""
    ident = "" if number is None else f"id: {number}\n"
    return f"{ident}event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"


def plain(text: str, code: int) -> Response:
    return PlainTextResponse(f"{text}\n", code, headers=HEADERS)
