"""Serve metrics from a daemon, and announce their address.

Owns: the server's begin and end, and the file by which Prometheus finds it. Does not own: the numbers
(`edl.daemon.metrics.families`), nor the answers (`edl.daemon.metrics.metrics_server`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from edl import __version__
from edl.clock import Clock
from edl.daemon.metrics.families import DaemonSeen, Family, families
from edl.daemon.metrics.metrics_server import MetricsServer
from edl.errors import ConfigError
from edl.protocol.leader_messages import Observation
from edl.protocol.record import Status

logger = logging.getLogger("edl")


class MetricsOffer:
    """The metrics server of a daemon, if metrics were asked for."""

    def __init__(self, job: str, worker: str, clock: Clock, folder: Path | None) -> None:
        """Keep the parts. `folder`: of the job's record on this host; None: there is no record."""
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
