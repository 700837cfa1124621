"""Write a trainer's output to horovodrun, and to a file once horovodrun is gone."""

from __future__ import annotations

import os
from pathlib import Path

from edl.launch.worker_output import Sink


class Outlet(Sink):
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
