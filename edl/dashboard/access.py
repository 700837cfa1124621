"""Access rules of a page: which requests may see it, and which may press its buttons. Pure.

A link with a token opens the page, and sets a cookie, so that no later address has the token. The cookie is limited to
the page's own path, because browsers send a cookie of "/" to every server on this host, at any port. All other requests
are refused: without the token, by another name of this host (a page that rebinds its name to ours), and a press of a
button that does not come from the page itself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

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
