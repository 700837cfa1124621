"""The variables of jobs' owners, in files that belong to the cluster's owner alone, until the jobs are over.

They are no part of what the coordinator holds: it would keep them in memory, and passwords among them in its logs. A
file's name says whose job it is of and what that takes of the queue, so that one listing of the folder is the account
of all that waits. What a process adds counts at once, and what others add within a second.

A file is as durable as edl's own coordinator: it outlives all processes. Its name says its size, so that one that a
power cut has shortened is noticed.

Owns: these files, and which variables of its owner's shell a job gets. Does not own: what each life is given besides
(`edl.scheduler.agent_process`), the bounds (`edl.cluster.queue.submission`), nor which job has which (`queue_store`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from edl.cluster.queue.queue_entries import Submission
from edl.cluster.queue.submission import ENVIRON_BYTES, QueueAccount, QueueFull, QueueShare
from edl.config import TABLE
from edl.errors import ConfigError, EdlError, UsageError

COUNT_S: Final = 1.0  # the folder is listed again after that
MARK: Final = "~"  # between the parts of a file's name
PARTS: Final = 5  # job, user, bytes of the job's entry, bytes of the variables, a word that no other file has

_ENVIRON = msgspec.json.Decoder(dict[str, str])


class VariablesLost(EdlError):
    """The job cannot be started on any machine: it is to be submitted again."""


class EnvironFiles:
    """A call takes a tenth of a millisecond, and once a second a few for each thousand jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._account = QueueAccount()
        self._counted = float("-inf")

    def keep(self, asked: Submission, entry_bytes: int, environ: Mapping[str, str]) -> str:
        """Write the variables; return the name of the file. Raises UsageError, QueueFull, ConfigError."""
        content = msgspec.json.encode(dict(environ))
        if len(content) > ENVIRON_BYTES:
            raise UsageError(f"the environment has {len(content)} bytes: unset some variables, {ENVIRON_BYTES} at most")
        share = QueueShare(1, entry_bytes, len(content))
        self._take(_safe(asked.user), share)
        name = MARK.join((asked.name, _safe(asked.user), *map(str, share[1:]), secrets.token_hex(8)))
        try:
            with open(self._folder / name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
        except OSError as error:
            self.forget({name})
            raise ConfigError(f"the job's variables cannot be kept in {self._folder}: {error.strerror}") from None
        return name

    def read(self, name: str) -> dict[str, str]:
        """Raises VariablesLost, EdlError."""
        try:
            content = (self._folder / name).read_bytes()
        except OSError as error:
            words = f"the job's variables cannot be read: {error.strerror}: {self._folder / name}"
            if isinstance(error, FileNotFoundError):
                raise VariablesLost(f"{words}: submit it again") from None
            raise EdlError(words) from None
        if len(content) != _share(name).environ_bytes:
            raise VariablesLost(f"the job's variables are not whole in {self._folder / name}: submit it again")
        return _ENVIRON.decode(content)

    def names(self) -> frozenset[str]:
        """Return no name where the folder does not answer."""
        try:
            with os.scandir(self._folder) as found:
                return frozenset(one.name for one in found if one.name.count(MARK) == PARTS - 1)
        except OSError:
            return frozenset()

    def forget(self, names: Collection[str]) -> None:
        """Files that cannot be removed now are found again."""
        for name in names:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()

    def _take(self, user: str, share: QueueShare) -> None:
        """Raises QueueFull."""
        if time.monotonic() - self._counted >= COUNT_S:
            self._count()
        try:
            self._account.check(user, share)
        except QueueFull:
            self._count()  # some may be over since
            self._account.check(user, share)
        self._account.take(user, share)

    def _count(self) -> None:
        self._account = QueueAccount((name.split(MARK)[1], _share(name)) for name in self.names())
        self._counted = time.monotonic()


def job_of(name: str) -> str:
    return name.partition(MARK)[0]


def _safe(user: str) -> str:
    return quote(user, safe="@").replace(MARK, "%7E")


def _share(name: str) -> QueueShare:
    _, _, entry_bytes, environ_bytes, _ = name.split(MARK)
    return QueueShare(1, int(entry_bytes), int(environ_bytes))


# Settings that are the cluster's to give to each life of a job, whatever this shell has, or the worker that this is.
OF_THE_LIFE = frozenset(
    ("job", "secret_file", "np", "min_workers", "max_workers", "processes", "limb", "meeting", "resume_from", "life",
     "batch_size", "stand_in", "driver_slot")
)  # fmt: skip
KEPT_OUT = frozenset(("EDL_HOME", "EDL_WORKER_ID", "EDL_LAUNCH", "EDL_SLOT", "EDL_CLUSTER_OWN")) | {
    name for setting in TABLE if setting.field in OF_THE_LIFE for name in setting.variables
}
OF_SUBMIT = (
    "EDL_NAME", "EDL_USER", "EDL_PRIORITY", "EDL_DEADLINE", "EDL_BATCH_RANGE", "EDL_JSON", "EDL_SPREAD", "EDL_CLUSTER",
    "EDL_TOKEN_FILE", "EDL_CA_FILE", "EDL_FOLDER", "EDL_ENV",
)  # fmt: skip


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the owner's variables that a job gets. Raises ConfigError."""
    left_out = KEPT_OUT | set(OF_SUBMIT)
    handed = {}
    for name, value in environ.items():
        if name in left_out or name.startswith("EDL_COORDINATOR"):
            continue
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the variable {ascii(name)[1:-1]} is not UTF-8: unset it") from None
        handed[name] = value
    return handed
