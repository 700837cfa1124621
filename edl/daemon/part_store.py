"""Make a trainer's copy for a checkpoint durable; write manifests, in a leader's daemon.

Owns: the threads that write, one job at a time, and the report of the result. Does not own: when
(`edl.core.checkpoint`), nor how files become durable (`edl.checkpoints`).

Writing never blocks the daemon's loop: a slow disk delays a checkpoint, and not training.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from edl.clock import Clock
from edl.core.data.ledgers import restored_ledger
from edl.core.data.resume_position import rebased
from edl.core.job.leader_inputs import PublishingFailed, SavingPublished
from edl.errors import EdlError, said_of
from edl.protocol.checkpoint_record import SPARE, FileInfo, PartInfo, Resumed
from edl.protocol.record import Record
from edl.protocol.trainer_messages import CopiedPart

logger = logging.getLogger("edl")


class PartStore:
    def __init__(
        self, folder: Path, stored: Callable[[int, PartInfo], object], failed: Callable[[int, str], object]
    ) -> None:
        """`folder`: shared with the trainer; `stored` or `failed` is called in the loop with the result."""
        self._folder = folder
        self._stored = stored
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "edl-store")
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest = 0

    def take(self, copied: CopiedPart) -> None:
        """Store a copy, unless that was begun."""
        # A trainer tells a daemon that replaces another one of the same copy: it may be durable already, or not.
        if copied.number <= self._newest or not copied.files:
            return
        self._newest = copied.number
        task = asyncio.get_running_loop().create_task(self._store(copied))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    async def wait_idle(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def close(self) -> None:
        """Stop; a write in progress may finish, and the process waits for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _store(self, copied: CopiedPart) -> None:
        paths = [self._folder / name for name in copied.files]
        copies = list(zip(paths[::2], paths[1::2], strict=True))  # of each process of the worker
        try:
            info = await asyncio.get_running_loop().run_in_executor(self._thread, _store, copies, copied.stall_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job hears of it, and does not wait for this part
            said = said_of(error)
            logger.warning("the part of this worker in checkpoint %d is not durable: %s", copied.number, said)
            self._failed(copied.number, said)
        else:
            self._stored(copied.number, info)
        for about, content in copies:
            with contextlib.suppress(OSError):
                about.unlink()
            with contextlib.suppress(OSError):
                content.rename(content.parent / SPARE)


def _store(copies: Sequence[tuple[Path, Path]], stall_ms: float) -> PartInfo:
    return PartInfo(tuple(file for about, content in copies for file in _files(about, content)), stall_ms)


def _files(about: Path, content: Path) -> tuple[FileInfo, ...]:
    from edl.checkpoints.part_files import PartCopy, store

    copied = msgspec.msgpack.decode(about.read_bytes(), type=PartCopy)
    with content.open("rb") as opened:
        if not (size := content.stat().st_size):
            return store(copied, memoryview(b""))
        # Not closed here: if it fails, the error still has views of it, and it is freed with the last of them.
        return store(copied, memoryview(mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)))


def resumed_from(path: str) -> tuple[Resumed | None, str]:
    """Return the checkpoint that the job resumes from, None if it begins anew; and why it cannot be read."""
    if not path:
        return None, ""
    from edl.checkpoints.checkpoint_paths import placed
    from edl.checkpoints.checkpoint_reader import open_checkpoint

    try:
        found = open_checkpoint(*placed(path))
    except EdlError as error:
        return None, f"this job was to go on from a checkpoint: {error}"
    manifest = found.manifest
    ledger = None if manifest.ledger is None else rebased(manifest.ledger)
    epoch = 0 if ledger is None else restored_ledger(ledger).counts().epoch
    return Resumed(manifest.base + manifest.step, manifest.life, path, ledger, epoch), ""


class Publisher:
    def __init__(self, clock: Clock, hear: Callable[[SavingPublished | PublishingFailed], object]) -> None:
        """`hear` is called in the loop with the result."""
        self._clock = clock
        self._hear = hear
        self._thread = ThreadPoolExecutor(1, "edl-publish")
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, record: Record) -> None:
        """Publish the saving of `record`; return at once."""
        task = asyncio.get_running_loop().create_task(self._publish(record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop; a write in progress may finish, as it was announced by a leader in its term."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _publish(self, record: Record) -> None:
        saving, loop = record.checkpoints.saving, asyncio.get_running_loop()
        assert saving is not None
        try:
            await loop.run_in_executor(self._thread, _publish, record, self._clock.wall())
        except Exception as error:  # noqa: BLE001 - whatever it is, the job hears of it, and does not wait for it
            self._hear(PublishingFailed(saving.number, said_of(error)))
            return
        self._hear(SavingPublished(saving.number))
        try:
            await loop.run_in_executor(self._thread, _remove_old, record)
        except (EdlError, OSError) as error:
            logger.warning("old checkpoints stay: %s", error)


def _publish(record: Record, now: float) -> None:
    from edl.checkpoints.publishing import publish_saving

    publish_saving(record, now)


def _remove_old(record: Record) -> None:
    from edl.checkpoints.publishing import remove_old

    if record.checkpoints.saving is not None:
        remove_old(record.checkpoints.saving, record.job_policy.checkpointing.keep)
