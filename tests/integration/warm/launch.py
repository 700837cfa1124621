"""Imported into the process of `edl run`, it lets its workers be forks of a zygote.

Without it they would be stubs, whose pids are not those that the job knows of its workers. Besides, a stub is in the
way of signals to a whole process group, and of SIGSTOP. What is left out is that a worker is a child of its launcher:
when the launcher is killed, its connections to the zygote end, and with them its workers.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stub import ask, read_number

from edl.launch import workers

STUB = str(Path(__file__).with_name("stub.py"))
ZYGOTE = "EDL_TEST_ZYGOTE"  # the socket of the one that `python SCRIPT` is forked from, where a command is as typed


class Forked:
    """As far as `edl.launch.workers` knows it, a `subprocess.Popen`."""

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


workers.subprocess = Subprocess  # type: ignore[assignment, attr-defined]
