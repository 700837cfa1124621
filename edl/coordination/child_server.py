"""A server of ours as a child process: ZooKeeper or etcd.

Owns: starting it so that it dies with the launcher, waiting until it serves or ends, and its log. Does not own: its
command line, nor when it serves (`server_process`, `etcd.server_process`), nor which port, which folder and for whom.

The server runs as the user who started it, root included: another user could not reach a folder below this one's home,
and would own what must be private.
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
"""Of a log that grew beyond LOG_BYTES one copy is kept, and it begins anew: strangers could fill the disk by it."""


class ChildServer(ABC):
    """A server in a folder of its own. It may be started again after it ended."""

    name = ""
    """What people know it by."""

    def __init__(self, folder: Path, address: str, port: int, *, keep_open: Sequence[int] = ()) -> None:
        """`keep_open`: file descriptors that the server inherits, a lock for example."""
        self.address = address
        self.port = port
        self.log = folder / f"{self.name.lower()}.log"
        self._folder = folder
        self._keep_open = tuple(keep_open)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, while it was started and not stopped."""
        if self._process is None:
            raise UsageError(f"the {self.name} server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start it; `wait_ready` is next. Raises `ConfigError` without what it takes to run one."""
        if threading.current_thread() is not threading.main_thread():
            # The kernel's "kill me when my parent dies" means the thread that forked.
            raise UsageError(f"start the local {self.name} on the main thread: it dies with the thread that started it")
        self.log.unlink(missing_ok=True)
        with self.log.open("ab") as log:  # appended to, so that it can be cut while it is written
            self._process = subprocess.Popen(
                dying_with(os.getpid(), self._command()),
                cwd=self._workplace,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._keep_open,
                start_new_session=True,  # a terminal's Ctrl-C goes to the launcher alone, which stops us in its order
            )

    async def wait_ready(self, timeout_s: float) -> bool:
        """True once it serves; False if it exited before. Raises `ConfigError` if neither happens in time."""
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
        """Return the exit status, once there is one; as `subprocess` gives it. Keeps the log within its bound
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
        """End it. Fine at any time: what it has answered is in its files, and its own way to end takes 0.35 s."""
        self.signal(signal.SIGKILL)
        if self.running:
            await self.wait_exit()

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def forget(self) -> None:  # noqa: B027 - most have nothing there
        """Remove what it has outside of its folder; after its end."""

    def _bound_log(self) -> None:
        with contextlib.suppress(OSError):  # removed, or a full disk
            if self.log.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)

    @property
    def _workplace(self) -> Path:
        """The folder that it runs in."""
        return self._folder

    @abstractmethod
    def last_words(self) -> str:
        """What its log says about the end, in one line, and where to read the rest."""

    @abstractmethod
    def found_port_taken(self) -> bool:
        """Whether it ended because another process has the port."""

    @abstractmethod
    async def _serves(self) -> bool: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def dying_with(parent: int, command: list[str]) -> list[str]:
    """The command, so that it is killed when the thread that starts it in `parent` ends, as far as the system allows.

    A parent that ends before the kernel knows of that wish kills nothing. So the command looks who its parent is first.
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
