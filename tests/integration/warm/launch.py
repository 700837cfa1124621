"""Imported into the process of `edl run`, it lets its workers be forks of a zygote.

Without it they would be stubs, whose pids are not those that the job knows of its workers. Besides, a stub is in the
way of signals to a whole process group, and of SIGSTOP. What is left out is that a worker is a child of its launcher:
when the launcher is killed, its connections to the zygote end, and with them its workers.

Its job has a part of a ZooKeeper that runs for many tests, and that is closed to others as one of its own would be.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
import subprocess
import time
import traceback
import types
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stub import CALL_S, ask, read_number

from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator
from edl.host.credentials import digest_of
from edl.launch import child_worker, local_launch, orphan_reaper
from edl.launch.job_records import Folder

STUB = str(Path(__file__).with_name("stub.py"))
COORDINATOR = "EDL_TEST_COORDINATOR"  # a file that tells where the shared one is, once it is there
OWN = "EDL_TEST_OWN"  # the socket of the zygote of edl itself
ZYGOTE = "EDL_TEST_ZYGOTE"  # the socket of the one that `python SCRIPT` is forked from, where a command is as typed


class Forked:
    """As far as `edl.launch.child_worker` knows it, a `subprocess.Popen`."""

    def __init__(self, socket: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        outputs = [os.pipe() for _ in range(2)]
        streams = [os.open(os.devnull, os.O_RDONLY), *(writer for _, writer in outputs)]
        self._zygote = ask(socket, command, dict(environ), str(Path.cwd()), streams)
        for stream in streams:
            os.close(stream)
        self.stdout, self.stderr = (os.fdopen(reader, "rb") for reader, _ in outputs)
        self.pid = read_number(self._zygote)
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None and select.select([self._zygote], [], [], 0)[0]:
            self.wait()
        return self._status

    def wait(self) -> int:
        if self._status is None:
            self._status = read_number(self._zygote)
            self._zygote.close()
        return self._status


class ForkedGuard:
    """As far as `edl.launch.orphan_reaper` knows it, a `subprocess.Popen`. It outlives its launcher, whose end it waits
    for.
    """

    def __init__(self, socket: str, command: Sequence[str], environ: Mapping[str, str], log: int) -> None:
        reader, self._writer = os.pipe()
        self._zygote = ask(socket, command, dict(environ), str(Path.cwd()), [reader, log, log], True)
        os.close(reader)
        self.pid = read_number(self._zygote)

    def kill(self) -> None:
        if not select.select([self._zygote], [], [], 0)[0]:  # it lives, so that no other has its pid
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> None:
        read_number(self._zygote)
        self._zygote.close()
        os.close(self._writer)


class Guards:
    """What `edl.launch.orphan_reaper` looks up in the module subprocess."""

    PIPE = subprocess.PIPE

    @staticmethod
    def Popen(command: Sequence[str], *, env: Mapping[str, str], stdout: Any, **how: Any) -> Any:  # noqa: N802
        if not env.get(OWN):
            return subprocess.Popen(command, env=env, stdout=stdout, **how)
        return ForkedGuard(env[OWN], [*command[1:]], env, stdout.fileno())


class Subprocess:
    """What is looked up in the module of that name."""

    DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE

    @staticmethod
    def Popen(command: Sequence[str], *, env: Mapping[str, str], **how: Any) -> Any:  # noqa: N802 - as it is called
        if STUB in command:
            socket, *script = command[command.index(STUB) + 1 :]
        elif ZYGOTE in env and "python" in command:
            socket, script = env[ZYGOTE], [*command[command.index("python") + 1 :]]
        else:
            return subprocess.Popen(command, env=env, **how)
        return Forked(socket, script, env)


def coordinator_of(settings: Settings, folder: Folder, **how: Any) -> Any:
    """What a launcher takes for the one of its own."""
    shared = Path(os.environ.get(COORDINATOR, ""))
    return (
        part_of(shared, settings) if shared.name and settings.coordinator is None else its_own(settings, folder, **how)
    )


@asynccontextmanager
async def part_of(shared: Path, settings: Settings) -> AsyncIterator[Coordinator]:
    hosts = await asyncio.to_thread(address_in, shared)
    yield Coordinator(f"{hosts}/{secrets.token_hex(8)}", digest_of(settings.secret()))


def address_in(shared: Path) -> str:
    deadline = time.monotonic() + CALL_S
    while not shared.exists():
        assert time.monotonic() < deadline, f"no ZooKeeper in {shared}"
        time.sleep(0.01)
    return shared.read_text()


def tell_where(_: int, frame: types.FrameType | None) -> None:
    """Where this process is, and where each of its tasks waits."""
    traceback.print_stack(frame)
    for loop in [asyncio.get_running_loop()] if asyncio._get_running_loop() else []:
        for task in asyncio.all_tasks(loop):
            task.print_stack()


signal.signal(signal.SIGUSR2, tell_where)
its_own = local_launch.launched_coordinator  # type: ignore[attr-defined]
local_launch.launched_coordinator = coordinator_of  # type: ignore[assignment, attr-defined]
child_worker.subprocess = Subprocess  # type: ignore[assignment, attr-defined]
orphan_reaper.subprocess = Guards  # type: ignore[assignment, attr-defined]
