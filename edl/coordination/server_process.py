"""One ZooKeeper server as a child process.

Owns: its configuration file, its command line, when it is ready, and its end. Does not own: which port, which folder
and for whom (`server`), nor where Java is (`java`).

The server runs as the user who started it, root included: another user could not reach a folder below this one's home,
and would own what must be private. It listens at one address, on the loopback interface if not told otherwise.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.coordination.java import find_jars, find_java
from edl.errors import ConfigError, UsageError

LOOPBACK = "127.0.0.1"

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # the other main class ignores autopurge
_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # 67 MiB instead of 160, and quicker to start
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xms32m",
    "-Xmx256m",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
)
_TICK_MS = 500

_PROBE_S = 0.15
"""In its first 0.2 s the server may accept a connection and never answer: ask again rather than wait."""
_PROBE_EVERY_S = 0.01


def base_config(folder: Path, port: int, address: str = LOOPBACK) -> dict[str, str]:
    """What every server of ours is told."""
    return {
        "tickTime": str(_TICK_MS),
        "maxSessionTimeout": "60000",  # its default is 20 ticks, and a longer time-out would silently be cut to that
        "maxClientCnxns": "0",  # its default lets 60 workers of one machine in
        "dataDir": str(folder / "data"),
        "clientPortAddress": address,
        "clientPort": str(port),
        "admin.enableServer": "false",  # would take port 8080
        "4lw.commands.whitelist": "srvr,conf",  # for wait_ready; others would tell strangers about sessions
        "autopurge.purgeInterval": "1",
        "forceSync": "no",  # safe when the process dies; a power cut ends the jobs of this machine anyway
        "preAllocSize": "1024",
    }


class ServerProcess:
    """A server in a folder of its own. It may be started again after it ended."""

    def __init__(self, folder: Path, config: Mapping[str, str], *, keep_open: Sequence[int] = ()) -> None:
        """`keep_open`: file descriptors that the server inherits, a lock for example."""
        self.port = int(config["clientPort"])
        self.address = config["clientPortAddress"]
        self.log = folder / "zookeeper.log"
        self._folder = folder
        self._keep_open = tuple(keep_open)
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(mode=0o700, exist_ok=True)
        self._config = folder / "zoo.cfg"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in config.items()))

    @property
    def pid(self) -> int:
        """Process id of the server, while it was started and not stopped."""
        if self._process is None:
            raise UsageError("the ZooKeeper server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start it; `wait_ready` is next. Raises `ConfigError` without Java or jars."""
        if threading.current_thread() is not threading.main_thread():
            # The kernel's "kill me when my parent dies" means the thread that forked.
            raise UsageError("start a ZooKeeper server on the main thread: it dies with the thread that started it")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self._folder,
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
                f"the local ZooKeeper does not serve after {timeout_s:g} s: {self.last_words()}"
            ) from None
        return False

    async def _serves(self) -> bool:
        if b"Mode: " not in await _ask(self.address, self.port, b"srvr"):  # `ruok` would say yes without a quorum, too
            return False
        return f"dataDir={self._folder}/".encode() in await _ask(
            self.address, self.port, b"conf"
        )  # no other process on this port

    async def wait_exit(self) -> int:
        """The exit status, once there is one; as `subprocess` gives it."""
        process = self._process
        if process is None:
            raise UsageError("the ZooKeeper server is not started")
        if process.poll() is None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            descriptor = os.pidfd_open(process.pid)
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
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

    def last_words(self) -> str:
        """What its log says about the end, in one line, and where to read the rest."""
        lines = self._log_text().splitlines()
        telling = [line for line in lines if "Exception: " in line or line.startswith("Error")]
        return f"{(telling or lines or ['its log is empty'])[-1].strip()} (all of it in {self.log})"

    def found_port_taken(self) -> bool:
        """Whether it ended because another process has the port."""
        return "java.net.BindException" in self._log_text()

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _command(self) -> list[str]:
        class_path = os.pathsep.join(map(str, find_jars()))
        java = [str(find_java()), *_FLAGS, "-cp", class_path, _MAIN, str(self._config)]
        return dying_with(os.getpid(), java)


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


async def _ask(address: str, port: int, word: bytes) -> bytes:
    """The server's answer to a four-letter word; empty if there is none in time."""
    try:
        async with asyncio.timeout(_PROBE_S):
            reader, writer = await asyncio.open_connection(address, port, family=socket.AF_INET)
            try:
                writer.write(word)
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
