"""A ZooKeeper or etcd server as a child process.

Owns: starting the server so that it dies with the launcher, waiting until it serves or ends, and its log. Does not own:
its command line and the check that it serves (`server_process`, `etcd.server_process`), nor the choice of port and
folder.

The server runs as the user who started it, root included: another user could not reach a folder below this user's home,
and would own files that must be private.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.errors import ConfigError, UsageError

LOOPBACK = "127.0.0.1"

_PROBE_EVERY_S = 0.01

LOG_BYTES = 4 << 20
_LOG_LOOK_S = 2.0
"""How often the log's size is checked. A log beyond LOG_BYTES is copied and emptied: strangers could fill the disk."""


class ChildServer(ABC):
    """A server with a folder of its own. It may be started again after it has ended."""

    name = ""
    """The server's name in messages."""

    def __init__(self, folder: Path, address: str, port: int, *, keep_open: Sequence[int] = ()) -> None:
        """Prepare the server; `keep_open` holds file descriptors that it inherits, a lock for example."""
        self.address = address
        self.port = port
        self.log = folder / f"{self.name.lower()}.log"
        self._folder = folder
        self._keep_open = tuple(keep_open)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, from its start until it is stopped. Raises UsageError before."""
        if self._process is None:
            raise UsageError(f"the {self.name} server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the server; call `wait_ready` next. Raises `ConfigError` if this machine cannot run it."""
        if threading.current_thread() is not threading.main_thread():
            # The kernel's "kill me when my parent dies" means the thread that forked.
            raise UsageError(f"start the local {self.name} on the main thread: it dies with the thread that started it")
        self.log.unlink(missing_ok=True)
        with self.log.open("ab") as log:  # in append mode, so that it can be truncated while it is written
            self._process = subprocess.Popen(
                dying_with(os.getpid(), self._command()),
                cwd=self._workplace,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._keep_open,
                start_new_session=True,  # a terminal's Ctrl-C goes to the launcher alone, which then stops the server
            )

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the server serves (True) or exits (False). Raises `ConfigError` if neither happens in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.running:
                    if await self._serves():
                        return True
                    await asyncio.sleep(_PROBE_EVERY_S)
        except TimeoutError:
            raise ConfigError(
                f"the local {self.name} does not serve after {timeout_s:g} s: {self.last_words()}"
            ) from None
        return False

    async def wait_exit(self) -> int:
        """Wait for the server's end and return its exit status, as `subprocess` gives it. Keep the log within its bound
        meanwhile.
        """
        process = self._process
        if process is None:
            raise UsageError(f"the {self.name} server is not started")
        if process.poll() is None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            descriptor = os.pidfd_open(process.pid)
            loop.add_reader(descriptor, ended.set)
            try:
                while not ended.is_set():
                    self._bound_log()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(ended.wait(), _LOG_LOOK_S)
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return process.wait()

    async def stop(self) -> None:
        """Kill the server. That is safe at any time: all acknowledged writes are in its files, and a graceful end takes
        0.35 s.
        """
        self.signal(signal.SIGKILL)
        if self.running:
            await self.wait_exit()

    def signal(self, number: int) -> None:
        """Send a signal if the server runs."""
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def forget(self) -> None:  # noqa: B027 - most have nothing there
        """Remove files of the server that lie outside of its folder. Call it after the server's end."""

    def _bound_log(self) -> None:
        with contextlib.suppress(OSError):  # removed, or a full disk
            if self.log.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)

    @property
    def _workplace(self) -> Path:
        """The server's working directory."""
        return self._folder

    @abstractmethod
    def last_words(self) -> str:
        """Return the last relevant line of the log, and the log's path."""

    @abstractmethod
    def found_port_taken(self) -> bool:
        """Tell whether the server ended because another process has the port."""

    @abstractmethod
    async def _serves(self) -> bool: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def dying_with(parent: int, command: list[str]) -> list[str]:
    """Wrap a command so that it is killed when the thread of `parent` that starts it ends, as far as the system allows.

    A parent that ends before the kernel has registered this wish kills nothing. So the command first checks that its
    parent is still `parent`.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return command
    return [
        setpriv,
        "--pdeathsig",
        "KILL",
        "--",
        "/bin/sh",
        "-c",
        '[ "$PPID" = "$0" ] && exec "$@"',
        str(parent),
        *command,
    ]
