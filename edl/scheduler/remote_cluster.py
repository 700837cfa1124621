"""A cluster on another machine, over its HTTP interface.

Owns: the calls, and asking again where a server was away or an answer was lost. Does not own: what they mean
(`edl.scheduler.web`). It is plain blocking code: Ctrl-C ends it where it stands.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from edl.cluster.queue.job_view import Accounts, JobList, JobShown
from edl.cluster.queue.submission import JobWish, SizeWish
from edl.config import Settings
from edl.coordination.dialing import ForeignServer, check_server
from edl.errors import ConfigError, EdlError, NoSuchJob, StoreUnavailable, TimedOut, UsageError
from edl.host.network import LOOPBACK, is_loopback
from edl.scheduler.cluster_access import Write
from edl.scheduler.cluster_client import PATIENCE_S, ClusterStatus
from edl.scheduler.worker_logs import LogPiece, LogPlace

ANSWER_S: Final = 70.0  # the server answers sooner, also where it waits
AGAIN_S: Final = 0.5
MOST_ANSWER: Final = 512 << 20
MOST_LINE: Final = 8 << 20

T = TypeVar("T")
AWAY = (OSError, http.client.HTTPException)


class _ServerAway(Exception):
    """The server does not answer now; it may answer the next time."""


class RemoteCluster:
    """A cluster reached by its address, with a token."""

    def settings_for(self, _: Settings) -> Settings:
        raise UsageError(f"a job of {self._url} can be asked for that on the cluster's own machine only")

    def __init__(self, url: str, token: str, ca_file: str | None = None) -> None:
        """Raises ConfigError."""
        self._url, self._token = url.rstrip("/"), token
        self._tls, self._host, self._port, self._user = _address(self._url)
        self._context = _context(ca_file) if self._tls else None

    # ----------------------------------------------------------------------------------------------------------- calls

    def submit(self, wish: JobWish) -> None:
        """Submit a job once, though an answer is lost: the ticket marks a repeated request as the same."""
        wish = msgspec.structs.replace(wish, ticket=secrets.token_hex(16))
        self._call("POST", "/v1/jobs", dict[str, str], msgspec.json.encode(wish))

    def jobs(self) -> tuple[JobShown, ...]:
        return self._call("GET", "/v1/jobs", JobList).jobs

    def whole_jobs(self) -> tuple[JobShown, ...]:
        """Return the jobs, each with its events and past devices."""
        return self._call("GET", "/v1/jobs?whole=1", JobList).jobs

    def job(self, name: str) -> JobShown:
        return self._call("GET", f"/v1/jobs/{quote(name)}", JobShown)

    def cancel(self, name: str) -> JobShown:
        return self._call("DELETE", f"/v1/jobs/{quote(name)}", JobShown)

    def scale(self, name: str, np: int | None) -> None:
        self._call("PUT", f"/v1/jobs/{quote(name)}/size", dict[str, Any], msgspec.json.encode(SizeWish(np)))

    def status(self) -> ClusterStatus:
        return self._call("GET", "/v1/cluster", ClusterStatus)

    def accounts(self) -> Accounts:
        return self._call("GET", "/v1/accounts", Accounts)

    def wait(self, name: str, timeout_s: float | None, seen: Callable[[JobShown], object]) -> JobShown:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        patience = 0
        while True:
            job = self._call("GET", f"/v1/jobs/{quote(name)}/wait?timeout_s={patience}", JobShown)
            seen(job)
            if job.over:
                return job
            left = 60.0 if until is None else until - time.monotonic()
            if left <= 0:
                raise TimedOut(f"job {name} is not over after {timeout_s:g} s: it is {job.state}")
            patience = max(1, min(10, int(left)))  # so that what it does meanwhile is seen

    def logs(self, name: str, worker: str | None, write: Write, *, follow: bool) -> None:
        """Go on where the log broke off when the connection was lost."""
        places: dict[str, LogPlace] = {}
        away_since = heard = time.monotonic()
        asked = f"/v1/jobs/{quote(name)}/logs?form=lines&follow={int(follow)}" + (f"&worker={worker}" if worker else "")
        several: set[str] = set()
        while True:
            after = ",".join(f"{key}={place.inode}:{place.at}" for key, place in list(places.items())[-200:])
            try:
                with self._answer("GET", f"{asked}&after={after}" if after else asked) as answer:
                    for piece in _pieces(answer):
                        heard = time.monotonic()
                        if piece is None:
                            continue
                        several.add(piece.worker)
                        mark = f"[{piece.worker}] " if worker is None and len(several) > 1 else ""
                        write("".join(f"{mark}{line}" for line in piece.text.splitlines(keepends=True)))
                        places[piece.worker] = piece.place
                return
            except _ServerAway as away:
                if heard > away_since:  # since it was away the last time: a job may print nothing for hours
                    away_since = heard = time.monotonic()
                if time.monotonic() > away_since + PATIENCE_S:
                    raise StoreUnavailable(f"{self._url}: {away}") from None
                time.sleep(AGAIN_S)

    # ---------------------------------------------------------------------------------------------------------- inside

    def _call(self, verb: str, path: str, kind: type[T], body: bytes | None = None) -> T:
        """Send a request, again while the server is away. Raises EdlError."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self._answer(verb, path, body) as answer:
                    return msgspec.json.decode(_read(lambda: _whole(answer)), type=kind)
            except _ServerAway as away:
                if time.monotonic() > until:
                    raise StoreUnavailable(f"{self._url}: {away}") from None
                time.sleep(AGAIN_S)
            except msgspec.MsgspecError as error:
                raise EdlError(f"{self._url}: is no cluster of this version of edl: {error}") from None

    @contextlib.contextmanager
    def _answer(self, verb: str, path: str, body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
        if self._context is not None:
            link: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=ANSWER_S, context=self._context
            )
        else:
            link = _LocalConnection(self._host, self._port, self._user)
        headers = {"Authorization": f"Bearer {self._token}"} | ({} if body is None else JSON)
        try:
            answer = _read(lambda: self._asked(link, verb, path, body, headers))
            if answer.status >= http.client.BAD_REQUEST:
                self._refused(answer)
            yield answer
        finally:
            link.close()

    def _asked(
        self, link: http.client.HTTPConnection, verb: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        try:
            link.request(verb, path, body, headers)
            return link.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"{self._url}: its certificate is not trusted ({error.verify_message}): name the file of who signed it "
                "by --ca-file"
            ) from None

    def _refused(self, answer: http.client.HTTPResponse) -> None:
        """Raise the error that the cluster itself would raise."""
        try:
            words = msgspec.json.decode(_read(lambda: _whole(answer)), type=dict[str, Any])["error"]
        except (msgspec.MsgspecError, KeyError):
            words = answer.reason
        if answer.status in {http.client.SERVICE_UNAVAILABLE, http.client.BAD_GATEWAY, http.client.GATEWAY_TIMEOUT}:
            raise _ServerAway(words)
        if answer.status == http.client.UNAUTHORIZED:
            raise ConfigError(f"{self._url}: the token opens nothing there: `edl cluster token USER` there gives one")
        if answer.status == http.client.NOT_FOUND and "cluster has no job" in words:
            raise NoSuchJob(words)
        if answer.status < http.client.INTERNAL_SERVER_ERROR:
            raise UsageError(words)
        raise EdlError(f"{self._url}: {words}")


JSON: Final = {"Content-Type": "application/json"}


class _LocalConnection(http.client.HTTPConnection):
    """Connection within this machine, where only the kernel proves who the server is: it is asked before the token is
    sent.
    """

    def __init__(self, host: str, port: int, user: int) -> None:
        """`user`: may own the server process, besides root."""
        super().__init__(host, port, timeout=ANSWER_S)
        self._user = user

    def connect(self) -> None:
        """Raises OSError, ConfigError."""
        super().connect()
        try:
            check_server(self.sock, self._user, ANSWER_S)
        except ForeignServer as error:
            place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
            raise ConfigError(
                f"http://{place} is another user's server, uid {error.user}: if that user keeps the cluster, write "
                f"http://{error.user}@{place}"
            ) from None


def _address(url: str) -> tuple[bool, str, int, int]:
    """Return whether TLS is used, host, port, and the user whose process may be the server. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"--cluster {url}: {error}") from None
    named = parts.username or ""
    wrong = parts.path or parts.query or parts.password or (named and not named.isdecimal())
    if parts.scheme not in {"http", "https"} or not host or wrong:
        raise ConfigError(f"--cluster {url}: must be http://HOST:PORT or https://HOST:PORT")
    if named and parts.scheme == "https":
        raise ConfigError(f"--cluster {url}: its certificate says whose the server is: leave out {named}@")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(
            f"--cluster {url}: the token would cross the network in the clear: use https://, or a tunnel "
            f"(ssh -L 8000:127.0.0.1:{port or 80} {host}) and http://127.0.0.1:8000"
        )
    if parts.scheme == "http" and host == "localhost":
        host = LOOPBACK  # where the server listens: at [::1] another user may, and would be sent the token
    port = port or (443 if parts.scheme == "https" else 80)
    return parts.scheme == "https", host, port, int(named) if named else os.geteuid()


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca-file {ca_file}: {error}") from None


def _read(call: Callable[[], T]) -> T:
    """Raises _ServerAway where the connection breaks."""
    try:
        return call()
    except ConnectionRefusedError:
        start = "`edl cluster start --http PORT` there"
        raise _ServerAway(f"nothing listens there: start the cluster by {start}, or name another port") from None
    except socket.gaierror:
        raise _ServerAway("there is no host of this name: look at --cluster") from None
    except AWAY as error:
        raise _ServerAway(f"{type(error).__name__}: {error}") from None


def _whole(answer: http.client.HTTPResponse) -> bytes:
    found = answer.read(MOST_ANSWER + 1)
    if len(found) > MOST_ANSWER:
        raise EdlError("the cluster answers more than this machine would keep")
    if answer.length:  # http.client says nothing of it where it was told how much to read
        raise http.client.IncompleteRead(found, answer.length)
    return found


def _pieces(answer: http.client.HTTPResponse) -> Iterator[LogPiece | None]:
    """Yield pieces until the server says that the log is over. None: the server lives, and nothing was printed. Raises
    _ServerAway.
    """
    while line := _read(lambda: answer.readline(MOST_LINE)):
        if not line.strip():
            yield None
            continue
        if not line.endswith(b"\n"):
            break
        if line == b'{"over":true}\n':
            return
        try:
            yield msgspec.json.decode(line, type=LogPiece)
        except msgspec.MsgspecError as error:
            raise EdlError(f"what came is no log: {error}") from None
    raise _ServerAway("it broke off")
