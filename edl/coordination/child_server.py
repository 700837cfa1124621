"""A local coordinator as a child process, with a folder and a lock of its own: its start, its end, and starting again.

Owns: starting the server on a port so that it dies with the launcher, waiting until it serves or ends, its log, and
that its folder belongs to this user alone and to one server at a time, and which ports may be used. Does not own: its
command line, the check that it serves and whom it serves (`zookeeper_server`, `etcd.etcd_server`,
`embedded.embedded_server`).

The server runs as the user who started it, root included: another user could not reach a folder below this user's home,
and would own files that must be private.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self, TypeVar

from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.errors import ConfigError, UsageError
from edl.file_lock import open_lock, take

LOOPBACK = "127.0.0.1"
LOCK = "lock"  # the file's name in a folder

_LOCK_S = 3.0
_LOWEST_PORT = 20_000


def free_port(address: str = LOOPBACK) -> int:
    """Return a port on which no process listens, outside the range that the kernel gives to outgoing connections.

    A client that keeps trying a dead server on a port of that range will in time be given that very port, connect to
    itself, and keep the server from coming back.
    """
    highest = _first_ephemeral_port() - 1
    for _ in range(100):
        port = random.randint(_LOWEST_PORT, highest) if highest > _LOWEST_PORT else 0  # noqa: S311
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"no free port between {_LOWEST_PORT} and {highest} on {address}")


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def private_folder(folder: Path) -> Path:
    """Create the folder for this user only; return its absolute path."""
    folder = folder.resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


async def lock_folder(folder: Path, name: str) -> int:
    """Lock the folder, and return the lock's file descriptor. The server inherits the lock, which so outlives a killed
    launcher. ZooKeeper itself takes no lock, and etcd would wait for its own.

    A server that was just killed holds its lock until its last thread is gone, so this waits up to `_LOCK_S`.
    """
    descriptor = open_lock(folder / LOCK)
    try:
        async with asyncio.timeout(_LOCK_S):
            while not take(descriptor):  # noqa: ASYNC110 - the kernel does not tell when a lock is free
                await asyncio.sleep(0.05)
    except BaseException as error:
        os.close(descriptor)
        if not isinstance(error, TimeoutError):
            raise
        raise ConfigError(f"another local {name} runs in {folder}: stop that job, or use another folder") from None
    return descriptor


def is_same(descriptor: int, path: Path) -> bool:
    """Tell whether the path still leads to this open file or folder. While it is open no other has its number."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def check_free(address: str, port: int) -> None:
    """Raises ConfigError where a server cannot listen."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise ConfigError(f"port {port} on {address} {reason}: name another, or none to have one chosen") from error


START_S = 60.0
_TRIES = 5
_PROBE_EVERY_S = 0.01

LOG_BYTES = 4 << 20
_LOG_LOOK_S = 2.0
"""How often the log's size is checked. A log beyond LOG_BYTES is copied and emptied: strangers could fill the disk."""

S = TypeVar("S", bound="ChildServer")


class ChildServer(ABC):
    """A server with a folder of its own. It may be started again after it has ended.

    The server dies with the thread that started it, however that thread ends, so it must be the main thread. Ctrl-C in
    the terminal does not reach the server.
    """

    name = ""
    """The server's name in messages."""

    def __init__(self, folder: Path, address: str, port: int, lock: int | None = None) -> None:
        """The server inherits the `lock` of its folder, which so outlives a killed launcher."""
        self.address = address
        self.port = port
        self.log = folder / f"{self.name.lower()}.log"
        self._folder = folder
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    async def start(
        cls, folder: Path, *, port: int | None = None, digest: Digest | None = None, address: str | None = None
    ) -> Self:
        """Start a server in `folder`, which is created, and wait until it serves; by default at the loopback address.

        A folder that was used before keeps its data, and must be given the same `digest`. Raises `ConfigError` with one
        line and the remedy: no program to run, the port or the folder in use.
        """
        folder = private_folder(folder)
        lock = await lock_folder(folder, cls.name)
        try:
            return await cls._start_in(folder, lock, port, digest, address)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    @abstractmethod
    async def _start_in(
        cls, folder: Path, lock: int, port: int | None, digest: Digest | None, address: str | None
    ) -> Self:
        """Start a server in a locked folder. Where that fails, no process is left; the lock stays."""

    @property
    @abstractmethod
    def coordinator(self) -> Coordinator: ...

    @property
    def pid(self) -> int:
        """Return the server's process id, valid from its start until it is stopped. Raises UsageError before."""
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
                pass_fds=() if self._lock is None else (self._lock,),
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
        meanwhile. `restart` brings the server back with all its data.
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
                        async with asyncio.timeout(_LOG_LOOK_S):
                            await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return process.wait()

    async def restart(self) -> None:
        """Start again on the same port and folder, after `wait_exit`, with sessions and data. Raises ConfigError."""
        try:
            await self._take_folder()
            self.spawn()
        except OSError as error:  # the folder was removed, for example
            reason = f"{error.strerror}: {error.filename}"
            raise ConfigError(f"the local {self.name} does not start again: {reason}") from None
        if not await self.wait_ready(START_S):
            raise ConfigError(f"the local {self.name} does not start again: {self.last_words()}")

    async def _take_folder(self) -> None:  # noqa: B027 - most go on in no other
        """Make and lock the folder if it was removed, for a server that can go on in a new one. Raises ConfigError,
        OSError.
        """

    async def stop(self) -> None:
        """End the server and unlock its folder. It may have ended already, and `stop` may be called twice."""
        await self.end()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def end(self) -> None:
        """Kill the server; its folder stays locked. That is safe at any time: all acknowledged writes are in its files,
        and a graceful end takes 0.35 s.
        """
        self.signal(signal.SIGKILL)
        if self.running:
            await self.wait_exit()
        self.forget()

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
        """Return the server's working directory."""
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


async def serve(make: Callable[[int], S], address: str, port: int | None) -> S:
    """Start a server and return it once it serves. A free port may be taken a moment later, so several are tried; a
    given port is tried once.
    """
    if port is not None:
        check_free(address, port)
        return await started(make(port))
    for _ in range(_TRIES - 1):
        server = make(free_port(address))
        if await _becomes_ready(server):
            return server
        if not server.found_port_taken():
            raise _does_not_start(server)
        server.forget()
    return await started(make(free_port(address)))


async def started(server: S) -> S:
    """Start a server and return it once it serves. Raises ConfigError if it ends before."""
    if not await _becomes_ready(server):
        raise _does_not_start(server)
    return server


async def _becomes_ready(server: ChildServer) -> bool:
    try:
        server.spawn()
        return await server.wait_ready(START_S)
    except BaseException:
        await server.end()  # no program to run, or Ctrl-C in between, for example
        raise


def _does_not_start(server: ChildServer) -> ConfigError:
    error = ConfigError(f"the local {server.name} does not start: {server.last_words()}")
    server.forget()
    return error


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
