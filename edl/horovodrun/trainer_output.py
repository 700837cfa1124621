"""Write a trainer's output to horovodrun, and to a file once horovodrun is gone; detect that no reader is left."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from edl.launch.worker_output import Sink


class TrainerOutput(Sink):
    """A sink that outlives its reader."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.spare: Path | None = None

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.broken and self.spare is not None:
            self.spare.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.spare, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.reopen(file)
            self.spare = None
            super().write(data)


class OutputReader:
    """Call `lost` once, on the running loop, when all of `descriptors` that are pipes have lost their readers.

    On a remote host nothing else tells of the end of the ssh by which horovodrun has started this process: neither
    killing horovodrun nor Ctrl-C sends a signal there, and sshd only closes the pipes.
    """

    def __init__(self, descriptors: Sequence[int], lost: Callable[[], object]) -> None:
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._heard = {descriptor for descriptor in descriptors if stat.S_ISFIFO(os.fstat(descriptor).st_mode)}
        for descriptor in self._heard:
            # an error is all that a writing end can report
            self._loop.add_reader(descriptor, self._on_error, descriptor)

    def stop(self) -> None:
        """Stop the calls. Harmless twice."""
        for descriptor in self._heard:
            self._loop.remove_reader(descriptor)
        self._heard = set()

    def _on_error(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._heard.discard(descriptor)
        if not self._heard:
            self._lost()
