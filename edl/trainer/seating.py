"""The place of this process in a job: whether it is a worker there, and which calls of a script it can answer.

Owns: the settings of the job that it has joined, and refusing calls that it cannot answer. Does not own: joining and
leaving (`edl.trainer.trainer`).
"""

from __future__ import annotations

import os

from edl import ownership
from edl.config import Settings
from edl.errors import UsageError
from edl.trainer.worker_shell import WorkerShell


class Seating:
    """The place of one process in its job."""

    def __init__(self, shell: WorkerShell) -> None:
        self._shell = shell
        self.settings: Settings | None = None  # of the job; None: `init` was not called
        self.imports_only = False  # this process imports the script of the one that has spawned it, or has done so

    def started(self) -> Settings:
        """Return the settings of the job. Raises UsageError before `init`."""
        if self.settings is None:
            raise UsageError("edl is not initialized: call edl.init() first")
        return self.settings

    def seated(self, call: str) -> Settings:
        """Raise UsageError in a child of the script's, for a `call` that needs the other workers, or the daemon."""
        if self._shell.inherited:
            raise UsageError(f"edl.{call}(): {ownership.refusal()}")
        return self.started()

    def joined(self, call: str) -> None:
        """Raise UsageError in a spawned child, for a `call` about what only a forked one knows."""
        if self.imports_only:
            raise UsageError(f"edl.{call}(): {ownership.SPAWNED}")
        self.started()

    def told(self, call: str) -> int:
        """Return what the parent of a spawned child had put into the environment. Raises UsageError."""
        told = os.environ.get(f"HOROVOD_{call.upper()}")
        if told is None:
            raise UsageError(f"edl.{call}(): {ownership.SPAWNED}")
        return int(told)

    def check_alone(self, what: str) -> None:
        """Raise UsageError for what workers of several processes cannot do yet."""
        if self.settings is not None and (processes := self.settings.processes) > 1:
            raise UsageError(f"{what}: not with workers of several processes (--processes {processes}) yet")
