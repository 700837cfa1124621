"""The audit on disk: each worker writes a file of its own, and a verifier reads them all.

Owns: the files. Does not own: the form of a line (`edl.protocol.audit_lines`), what they mean together
(`edl.core.audit.sample_account`).

A line is handed to the kernel in one write before the worker goes on, so that it outlives the process however that
dies. It does not outlive the machine: nothing waits for a disk.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edl.core.audit.kept_steps import WorkerAudit
from edl.errors import ConfigError, UsageError
from edl.protocol.assignment import Place
from edl.protocol.audit_lines import (
    FIRST_LIFE,
    READABLE,
    VERSION,
    BatchGiven,
    Began,
    Committed,
    Damaged,
    DataEnded,
    DataOpened,
    LifeAudited,
    Line,
    PartsComputed,
    Sat,
    ShardEnded,
    decoded,
    encoded,
)
from edl.protocol.data_nouns import DataSpec, Lease
from edl.transport.shared_page import StepCounter

if TYPE_CHECKING:  # `edl run` prepares the folder, and has no use for numpy
    import numpy as np
    from numpy.typing import NDArray

PATTERN = "audit-*.jsonl"


class Audit:
    """An audit that records nothing."""

    on = False

    def opened(self, spec: DataSpec) -> None:
        """Record what the script trains on."""

    def sat(self, place: Place, step: int) -> None:
        """Record that this worker's ring stands, with all members in the state of `step`."""

    def given(self, lease: Lease, step: int, ids: NDArray[np.int64]) -> None:
        """Record the samples of a step before the script gets them. Any thread."""

    def committed(self, generation: int, step: int, weight: float | None = None) -> None:
        """Record that the step is applied, with this weight of this worker's samples."""

    def computed(self, step: int, loop: int, digests: Sequence[tuple[int, int]]) -> None:
        """Record the digests of virtual workers' parts of a step, which is counted over all lives."""

    def ended(self, epochs: int, step: int) -> None:
        """Record that the script learns the end of so many epochs, with this step. Any thread."""

    def shard_ended(self, epoch: int, shard: int, items: int, *, skipped: bool = False) -> None:
        """Record that the end of a shard of a stream was found. Any thread."""


class AuditFile(Audit):
    """An audit in a file of the worker, in a folder that all workers of this machine share."""

    on = True

    def __init__(
        self, folder: Path, job: str, worker: str, life: Callable[[], LifeAudited] = lambda: FIRST_LIFE
    ) -> None:
        """Ask for `life` with the first line: the leader has told its number by then."""
        prepare(folder)
        self._path = folder / PATTERN.replace("*", worker)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._file = os.open(self._path, flags, 0o600)
        except FileExistsError:
            raise ConfigError(f"EDL_AUDIT={folder}: {_taken(self._path)}") from None
        except OSError as error:
            raise ConfigError(f"EDL_AUDIT={folder}: no file can be made in it: {error.strerror}") from None
        self._head: Callable[[], Began] | None = lambda: Began(VERSION, job, worker, life())
        self._beginning = threading.Lock()

    def opened(self, spec: DataSpec) -> None:
        self._write(DataOpened(spec))

    def sat(self, place: Place, step: int) -> None:
        self._write(Sat(place.generation, step, place.rank, place.size))

    def given(self, lease: Lease, step: int, ids: NDArray[np.int64]) -> None:
        check = zlib.crc32(ids.astype("<i8", copy=False).data)
        self._write(BatchGiven(step, lease.epoch, lease.between(step - 1, step), check))

    def committed(self, generation: int, step: int, weight: float | None = None) -> None:
        self._write(Committed(generation, step, weight))

    def computed(self, step: int, loop: int, digests: Sequence[tuple[int, int]]) -> None:
        self._write(PartsComputed(step, loop, tuple(digests)))

    def ended(self, epochs: int, step: int) -> None:
        self._write(DataEnded(epochs, step))

    def shard_ended(self, epoch: int, shard: int, items: int, *, skipped: bool = False) -> None:
        self._write(ShardEnded(epoch, shard, items, skipped))

    def _write(self, line: Line) -> None:
        if self._head is not None:
            with self._beginning:  # no other line may come before it
                if self._head is not None:
                    self._append(self._head())
                    self._head = None
        self._append(line)

    def _append(self, line: Line) -> None:
        text = encoded(line)
        try:
            written = os.write(self._file, text)
        except OSError as error:
            raise ConfigError(f"EDL_AUDIT: {self._path} cannot be written: {error.strerror}") from None
        if written != len(text):
            raise ConfigError(f"EDL_AUDIT: {self._path} cannot be written: no space is left")


class AuditedCount:
    """Count steps in the hot path, and record them: with an audit the same mini-batches are usual ones as without."""

    def __init__(
        self, count: StepCounter, audit: Audit, generation: Callable[[], int], applied: Callable[[], float | None]
    ) -> None:
        self._count = count
        self._audit = audit
        self._generation = generation
        self._applied = applied

    @property
    def step(self) -> int:
        return self._count.step

    def advance(self) -> bool:
        if not self._count.advance():
            return False
        self._audit.committed(self._generation(), self._count.step, self._applied())
        return True


def prepare(folder: Path) -> None:
    """Make the folder, closed to other users. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"EDL_AUDIT={folder}: cannot be made a folder: {error.strerror}; name one that you may write to"
        ) from None


def check_free(folder: Path, job: str | None) -> None:
    """Check that the folder holds audits of earlier lives of `job` only; None: of no job. Raises ConfigError."""
    for path in sorted(folder.glob(PATTERN)):
        if _job_of(path) not in (None, job):
            raise ConfigError(f"EDL_AUDIT={folder}: {_taken(path)}")


def _job_of(path: Path) -> str | None:
    """Return the job; None if the worker died before its first line was written."""
    try:
        with path.open("rb") as file:
            began = _began(path, decoded(file.readline()))
    except (OSError, Damaged, UsageError):  # no audit of ours: it is none of this job's either
        return ""
    return None if began is None else began.job


def _taken(path: Path) -> str:
    return f"has the audit of another run in it ({path.name}): name a new or empty folder"


def read(folder: Path) -> list[WorkerAudit]:
    """Raise UsageError for a file that is no audit."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: name the one that EDL_AUDIT or --audit named")
    paths = sorted(folder.glob(PATTERN))
    if not paths:
        raise UsageError(f"{folder} has no audit in it ({PATTERN}): name the folder that EDL_AUDIT or --audit named")
    return [audit for path in paths if (audit := _read_file(path)) is not None]


def _read_file(path: Path) -> WorkerAudit | None:
    """Read an audit; None if its worker died before its first line was written."""
    try:
        lines = decoded(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except Damaged as error:
        raise UsageError(f"{path} is damaged {error}") from None
    first = _began(path, lines)
    return None if first is None else WorkerAudit(first.worker, first.job, lines[1:], first.life)


def _began(path: Path, lines: Sequence[Line]) -> Began | None:
    if not lines:
        return None
    first = lines[0]
    if not isinstance(first, Began) or first.version not in READABLE:
        raise UsageError(f"{path} is no audit of this version of edl: verify it with the version that wrote it")
    return first
