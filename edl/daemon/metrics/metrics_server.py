"""Serve metrics to Prometheus: HTTP on one address of this host, for one page.

Owns: which requests are answered, how many at a time and for how long, the server's begin and end, and the file by
which Prometheus finds it. Does not own: the contents (`edl.daemon.metrics.families`).

It runs in the daemon's own loop and is bounded in all resources, so that no reader delays the job: a request has 8 kB
and 5 seconds to be made and to take its answer, 16 are answered at a time, and further ones are refused. Text is made
in a thread, and each form of it once a second at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

from edl import __version__
from edl.clock import Clock
from edl.daemon.metrics.families import DaemonSeen, Family, families
from edl.errors import ConfigError
from edl.host.network import LOOPBACK
from edl.protocol.leader_messages import Observation
from edl.protocol.record import Status

logger = logging.getLogger("edl")

AT_ONCE: Final = 16
REQUEST_S: Final = 5.0
REQUEST_BYTES: Final = 8192
KEPT_S: Final = 1.0  # for so long an answer is reused
FORMS: Final = 4  # distinct forms made in that time, by the types that readers accept
NEIGHBOURS: Final = 100  # ports from the given one on: so many workers of a host can be read
NAMES: Final = frozenset({"localhost", LOOPBACK, "[::1]"})  # host names accepted on loopback


class MetricsServer:
    def __init__(self, read: Callable[[], list[Family]]) -> None:
        """`read` returns the present metrics; it is called in the loop."""
        from edl.daemon.metrics import exposition  # only where it was asked for: its import takes a tenth of a boot

        self._encoded = exposition.encoded
        self._read = read
        self._making = asyncio.Lock()
        self._made: dict[str, tuple[float, bytes, str]] = {}  # time, page and content type, by accepted types
        self._busy: set[asyncio.Task[None]] = set()
        self._address = ""
        self._server: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> int:
        """Listen on `port`, or on the next free one; 0: on any. Return the port. Raises OSError."""
        self._address = address
        last = min(port + NEIGHBOURS, 65536) - 1 if port else 0
        for candidate in range(port, last):
            with contextlib.suppress(OSError):
                return await self._listen(candidate)
        return await self._listen(last)

    async def _listen(self, port: int) -> int:
        self._server = await asyncio.start_server(
            self._serve, self._address, port, limit=REQUEST_BYTES, backlog=AT_ONCE
        )
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        writer.transport.set_write_buffer_limits(high=0)  # so that drained means sent
        sent = False
        try:
            with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_S):
                    writer.write(await self._answer(reader))
                    await writer.drain()
                    sent = True
        finally:
            self._busy.discard(task)
            # closing would wait for ever for a reader that does not read
            writer.close() if sent else writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        if len(self._busy) > AT_ONCE:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, b"too many readers\n")
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too long\n")
        line, *fields = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if self._address == LOOPBACK and _name(headers.get("host", "")) not in NAMES:
            return _response(HTTPStatus.FORBIDDEN, b"ask for localhost: a page of another name reads nothing here\n")
        if method not in {"GET", "HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        if path != "/metrics":
            return _response(HTTPStatus.NOT_FOUND, b"/metrics is all there is\n")
        return await self._page(headers.get("accept", ""), shown=method == "GET")

    async def _page(self, accepted: str, *, shown: bool) -> bytes:
        """Return the page in the accepted form, made once for all readers."""
        async with self._making:
            now = asyncio.get_running_loop().time()
            self._made = {form: made for form, made in self._made.items() if now - made[0] < KEPT_S}
            if accepted not in self._made:
                if len(self._made) >= FORMS:
                    return _response(HTTPStatus.TOO_MANY_REQUESTS, b"in too many forms; try again in a second\n")
                self._made[accepted] = (now, *await asyncio.to_thread(self._encoded, self._read(), accepted))
            _, body, kind = self._made[accepted]
            return _response(HTTPStatus.OK, body, kind, shown=shown)


def _name(host: str) -> str:
    """Return the host name without its port, which browsers leave out if it is 80."""
    return re.sub(r":\d*$", "", host)


def _response(status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", *, shown: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if shown else b"")


class MetricsOffer:
    """The metrics server of a daemon, if metrics were asked for."""

    def __init__(self, job: str, worker: str, clock: Clock, folder: Path | None) -> None:
        """`folder`: of the job's record on this host; None: there is no record."""
        self._job = job
        self._worker = worker
        self._clock = clock
        self._file = None if folder is None else folder / "metrics" / f"{worker}.json"
        self._server: MetricsServer | None = None

    async def start(
        self,
        address: str,
        port: int,
        seen: Callable[[], tuple[Observation, dict[str, int]]],
        leading: Callable[[], Status | None],
    ) -> str:
        """Begin to serve; return the URL. `seen`: the worker and the refusals; `leading`: the job, if this daemon leads
        it. Raises ConfigError.
        """

        def read() -> list[Family]:
            status, (observation, refused) = leading(), seen()
            own = DaemonSeen(self._job, self._worker, __version__, status is not None, observation, refused)
            return families(own, status, self._clock.wall())

        try:
            server = MetricsServer(read)
            found = await server.start(address, port)
        except ImportError:
            raise ConfigError("--metrics-port: it takes `pip install 'horovod-edl[metrics]'`") from None
        except OSError as error:
            raise ConfigError(
                f"--metrics-port {port}: cannot listen at {address}: {error.strerror}; choose another, or 0 for any"
            ) from None
        self._server = server
        self._write(f"{address}:{found}")
        return f"http://{address}:{found}/metrics"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _write(self, target: str) -> None:
        """Write the target for Prometheus' file_sd. A failure does not end the worker."""
        if self._file is None:
            return
        draft = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            draft.write_text(json.dumps([{"targets": [target], "labels": {"edl_job": self._job}}]), encoding="utf-8")
            draft.chmod(0o600)
            draft.replace(self._file)
        except OSError as error:
            logger.warning("%s: Prometheus does not find these metrics by it: %s", self._file, error.strerror)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
