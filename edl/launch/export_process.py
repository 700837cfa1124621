"""The child process of a launcher that exports a job's figures and spans: `--tensorboard`, OpenTelemetry.

Owns: whether one is asked for and can be had, its start and its end. Does not own: what it tells (`edl.exports`, which
nothing here imports: the launcher stays light).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Final

from edl.config import Settings
from edl.errors import ConfigError
from edl.host.host_processes import wait_exit
from edl.launch.job_records import Folder
from edl.launch.orphan_reaper import unmarked

END_S: Final = 10.0  # to read the record to its end, and to send what is left
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def check(settings: Settings) -> None:
    """Check the folder and packages that --tensorboard needs. Raises ConfigError."""
    if settings.tensorboard is None:
        return
    if not _installed("tensorboard"):
        raise ConfigError("--tensorboard needs tensorboard: pip install 'horovod-edl[tensorboard]'")
    try:
        settings.tensorboard.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"--tensorboard: {settings.tensorboard} is a file: name a folder, which may be new") from None
    except OSError as error:
        raise ConfigError(f"--tensorboard: cannot make {settings.tensorboard}: {error.strerror}") from None
    if not os.access(settings.tensorboard, os.W_OK | os.X_OK):
        raise ConfigError(f"--tensorboard: cannot write to {settings.tensorboard}: Permission denied")


def spans_wanted(environ: Mapping[str, str]) -> bool:
    """Tell whether OpenTelemetry's own variables ask for spans."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(environ.get(name) for name in ENDPOINTS)


def why_no_spans(environ: Mapping[str, str]) -> str:
    """Say why spans cannot be sent; empty if they can. The variables may be meant for other programs."""
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        return f"edl sends spans by http/protobuf only, and the protocol asked for is {protocol}"
    if not (_installed("opentelemetry.sdk") and _installed("opentelemetry.exporter.otlp.proto.http")):
        return "no spans are sent without OpenTelemetry: pip install 'horovod-edl[opentelemetry]'"
    return ""


def start(settings: Settings, folder: Folder, mark: str, say: Callable[[str], object]) -> Exports:
    """Start the process if anything is to be exported."""
    words = [] if settings.tensorboard is None else ["--tensorboard", str(settings.tensorboard)]
    if spans_wanted(os.environ):
        if lacking := why_no_spans(os.environ):
            say(lacking)
        else:
            words.append("--spans")
    return Exports(folder, mark, words, say)


class Exports:
    """Export process of a launch, if it has one. It follows the job's record and ends once the job is over there."""

    def __init__(self, folder: Folder, mark: str, words: list[str], say: Callable[[str], object]) -> None:
        self._say, self._log = say, folder.logs / "exports.log"
        self._process: subprocess.Popen[bytes] | None = None
        if not words:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "edl.exports", str(folder.path), mark, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=unmarked(os.environ),
                start_new_session=True,
            )

    async def end(self) -> None:
        """Wait for the process, which ends once the record says that the job is over; kill it if it is too slow."""
        if self._process is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await wait_exit(self._process.pid)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._say(f"what tells TensorBoard or OpenTelemetry of the job took too long to end: see {self._log}")
        elif self._process.returncode:
            self._say(f"TensorBoard or OpenTelemetry were not told of all of the job: {self._last_line()}")

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'its process was killed'}; log: {self._log}"


def _installed(name: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # of a package that it is in
        return find_spec(name) is not None
    return False
