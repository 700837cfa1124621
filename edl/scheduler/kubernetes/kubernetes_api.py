"""The API server of Kubernetes, asked over HTTPS with a service account's token: Pods made, listed, watched, ended.

Owns: these calls, and what their answers mean. Does not own: what they are for (`engine`). It is plain blocking code.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from edl.errors import ConfigError, EdlError
from edl.host.network import LOOPBACK, is_loopback
from edl.scheduler.cluster_home import KubernetesGiven

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # in each Pod that has one
ANSWER_S: Final = 10.0
WATCH_S: Final = 20  # then it is asked for anew: a connection that died without a word is noticed
MOST_ANSWER: Final = 256 << 20
MOST_LINE: Final = 8 << 20
EXISTS: Final = "AlreadyExists"
GONE, CONFLICT, MISSING, BUSY, NO_TOKEN, TIMED_OUT = 410, 409, 404, 429, 401, 408


class KubernetesError(EdlError):
    """Kubernetes did not do what it was asked, or did not answer. It may the next time."""


class KubernetesRefused(KubernetesError):
    """The API server refuses a call, and would refuse it the next time."""

    def __init__(self, words: str, code: int, reason: str = "") -> None:
        """`reason`: a word of the API, such as `AlreadyExists`."""
        super().__init__(words)
        self.code, self.reason = code, reason


class WatchExpired(KubernetesError):
    """The API server no longer knows what has happened since a watch's version: list all Pods again."""


class PodEvent(msgspec.Struct, frozen=True):
    """`pod` was added or changed, or is gone; None: only the version has moved on."""

    gone: bool
    pod: dict[str, Any] | None
    version: str


class KubernetesApi:
    """Client of the API server, for the Pods of one namespace."""

    def __init__(self, given: KubernetesGiven) -> None:
        """Raises ConfigError."""
        self._url, self._account = given.url, Path(given.account)
        self._path = f"/api/v1/namespaces/{quote(given.namespace)}/pods"
        self._tls, self._host, self._port = address_of(given.url)
        self._context = self._trusting() if self._tls else None

    # ----------------------------------------------------------------------------------------------------------- calls

    def make(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Make a Pod. Return the Pod as it stands in Kubernetes now, also where it was made before. Raises
        KubernetesError, KubernetesRefused.

        A conflict has one more cause than a name that is taken: two Pods are counted for one quota at once. Such a
        Pod was not made, and is to be asked for again.
        """
        try:
            return self._call("POST", self._path, pod)
        except KubernetesRefused as refused:
            if refused.code != CONFLICT:
                raise
            conflict = refused
        there = self._pod(pod["metadata"]["name"])
        if there is not None:
            return there
        if conflict.reason == EXISTS:
            raise KubernetesRefused(f"its Pod was there and is gone: {conflict}", MISSING)
        raise KubernetesError(f"{self._url}: {conflict}")

    def end(self, name: str, uid: str, grace_s: int) -> None:
        """Delete the Pod that has this uid, and no other Pod of its name. A Pod that is gone is no error. Raises
        KubernetesError.
        """
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_s}
        try:
            self._call("DELETE", f"{self._path}/{quote(name)}", {**options, "preconditions": {"uid": uid}})
        except KubernetesRefused as refused:
            if refused.code not in {MISSING, CONFLICT}:
                raise
            there = self._pod(name) if refused.code == CONFLICT else None
            if there is not None and there["metadata"].get("uid") == uid:  # the conflict is about something else
                raise KubernetesError(f"{self._url}: {refused}") from None

    def pods(self, selector: str) -> tuple[list[dict[str, Any]], str]:
        """List Pods; return also the version from which on they can be watched. Raises KubernetesError."""
        found = self._call("GET", f"{self._path}?{urlencode({'labelSelector': selector})}")
        return list(found.get("items") or ()), str((found.get("metadata") or {}).get("resourceVersion", ""))

    def watch(self, selector: str, version: str, link: WatchLink) -> Iterator[PodEvent]:
        """Yield events of Pods after a version. A watch ends now and then. Raises KubernetesError, WatchExpired."""
        asked = {
            "labelSelector": selector, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }  # fmt: skip
        with self._answer("GET", f"{self._path}?{urlencode(asked)}", timeout_s=WATCH_S + ANSWER_S, link=link) as answer:
            while line := self._read(lambda: answer.readline(MOST_LINE)):
                if line.strip():
                    yield _event(line)

    def nodes(self) -> list[dict[str, Any]]:
        """Raises KubernetesError."""
        return list(self._call("GET", "/api/v1/nodes").get("items") or ())

    def node(self, name: str) -> dict[str, Any] | None:
        """Raises KubernetesError."""
        return self._found(f"/api/v1/nodes/{quote(name)}")

    # ---------------------------------------------------------------------------------------------------------- inside

    def _pod(self, name: str) -> dict[str, Any] | None:
        return self._found(f"{self._path}/{quote(name)}")

    def _found(self, path: str) -> dict[str, Any] | None:
        try:
            return self._call("GET", path)
        except KubernetesRefused as refused:
            if refused.code == MISSING:
                return None
            raise

    def _trusting(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self._account}/ca.crt cannot be read: {error}") from None

    def _token(self) -> str:
        """Read each time: Kubernetes replaces it every hour."""
        try:
            return (self._account / "token").read_text().strip()
        except OSError as error:
            raise KubernetesError(f"{self._account}/token cannot be read: {error.strerror}") from None

    def _call(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._answer(verb, path, body) as answer:
            whole = self._read(lambda: answer.read(MOST_ANSWER))
        try:
            return cast("dict[str, Any]", json.loads(whole))
        except ValueError:
            raise KubernetesError(f"{self._url}: is no API server of Kubernetes: {whole[:80]!r}") from None

    @contextlib.contextmanager
    def _answer(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = ANSWER_S,
        link: WatchLink | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        if self._context is not None:
            line: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=self._context
            )
        else:
            line = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        headers = {"Authorization": f"Bearer {self._token()}", "Accept": "application/json"}
        try:
            if body is not None:
                headers["Content-Type"] = "application/json"
            self._read(lambda: line.request(verb, path, None if body is None else json.dumps(body), headers))
            if link is not None:
                link.takes(line)
            answer = self._read(line.getresponse)
            if answer.status >= http.client.BAD_REQUEST:
                raise refusal(answer.status, self._read(lambda: answer.read(MOST_ANSWER)), self._url)
            yield answer
        finally:
            line.close()

    def _read(self, act: Any) -> Any:
        """Raises KubernetesError."""
        try:
            return act()
        except (OSError, http.client.HTTPException) as error:
            raise KubernetesError(f"{self._url}: {str(error) or type(error).__name__}") from None


class WatchLink:
    """The connection of a watch, which another thread may cut."""

    def __init__(self) -> None:
        self._line: http.client.HTTPConnection | None = None
        self.cut_off = False

    def takes(self, line: http.client.HTTPConnection) -> None:
        self._line = line
        if self.cut_off:
            self.cut()

    def cut(self) -> None:
        self.cut_off = True
        if self._line is not None and self._line.sock is not None:
            with contextlib.suppress(OSError):
                self._line.sock.shutdown(socket.SHUT_RDWR)


def refusal(code: int, body: bytes, url: str) -> KubernetesError:
    """Return the error that an unexpected answer means."""
    reason = ""
    try:
        told = json.loads(body)
        words, reason = str(told["message"])[:300], str(told.get("reason", ""))
    except (ValueError, KeyError, TypeError):
        words = http.client.responses.get(code, f"status {code}")
    if code == GONE:
        return WatchExpired(words)
    if code in {NO_TOKEN, TIMED_OUT, BUSY} or code >= http.client.INTERNAL_SERVER_ERROR:
        return KubernetesError(f"{url}: {words}")
    return KubernetesRefused(words, code, reason)


def _event(line: bytes) -> PodEvent:
    try:
        told = json.loads(line)
        kind, found = str(told["type"]), told["object"]
    except (ValueError, KeyError, TypeError):
        raise KubernetesError(f"a watch breaks off within a line: {line[:80]!r}") from None
    if kind == "ERROR":
        code = int(found.get("code") or 0)
        raise refusal(code or http.client.INTERNAL_SERVER_ERROR, json.dumps(found).encode(), "watch")
    version = str((found.get("metadata") or {}).get("resourceVersion", ""))
    return PodEvent(kind == "DELETED", None if kind == "BOOKMARK" else found, version)


def address_of(url: str) -> tuple[bool, str, int]:
    """Return whether TLS is used, the host and the port. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"--kubernetes {url}: {error}") from None
    if parts.scheme not in {"http", "https"} or not host or parts.path.strip("/") or parts.query or parts.username:
        raise ConfigError(f"--kubernetes {url}: must be the API server's address, such as https://10.0.0.1:6443")
    tls = parts.scheme == "https"
    if not tls and not is_loopback(host):
        raise ConfigError(f"--kubernetes {url}: the token would cross the network in the clear: name it by https://")
    if not tls and host == "localhost":
        host = LOOPBACK  # where `kubectl proxy` listens: at [::1] another user may, and would be sent the token
    return tls, host, port or (443 if tls else 80)


def found_here(environ: Mapping[str, str] = os.environ) -> str | None:
    """The API server's address, as each Pod is told it."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT_HTTPS")
    port = port or environ.get("KUBERNETES_SERVICE_PORT") or "443"
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
