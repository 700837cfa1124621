"""A daemon makes durable what its trainer has copied for a checkpoint; a leader's daemon writes the manifests.

Owns: the threads in which that is done, one thing at a time, and what is told of it. Does not own: when
(`edl.core.checkpoint`), nor how it becomes durable (`edl.checkpoints`).

Writing never holds up the daemon's loop: a slow disk costs a checkpoint its time, and training nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from edl.clock import Clock
from edl.core.data.inheriting import rebased
from edl.core.data.ledger import Ledger
from edl.core.job.inputs import PublishingFailed, SavingPublished
from edl.errors import EdlError, said_of
from edl.protocol import link as say
from edl.protocol.job import Record
from edl.protocol.saving import SPARE, PartInfo, Resumed

logger = logging.getLogger("edl")


class PartStore:
    """Of one trainer's daemon."""

    def __init__(
        self, folder: Path, stored: Callable[[int, PartInfo], object], failed: Callable[[int, str], object]
    ) -> None:
        """`folder` is that which the trainer shares; in the loop, `stored` or `failed` is told what came of it."""
        self._folder = folder
        self._stored = stored
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "edl-store")
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest = 0

    def take(self, copied: say.Copied) -> None:
        """Said again by a trainer to the daemon that follows another one: it may be durable already, or not."""
        if copied.number <= self._newest or len(copied.files) != 2:
            return
        self._newest = copied.number
        task = asyncio.get_running_loop().create_task(self._store(copied))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def busy(self) -> bool:
        """Something is being written."""
        return bool(self._tasks)

    async def wait_idle(self, timeout_s: float) -> None:
        """Until it is not, or for so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def close(self) -> None:
        """What is being written may come to its end; the process waits for that."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _store(self, copied: say.Copied) -> None:
        about, content = (self._folder / name for name in copied.files)
        try:
            info = await asyncio.get_running_loop().run_in_executor(
                self._thread, _store, about, content, copied.stall_ms
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the job hears of it, and does not wait for this part
            said = said_of(error)
            logger.warning("the part of this worker in checkpoint %d is not durable: %s", copied.number, said)
            self._failed(copied.number, said)
        else:
            self._stored(copied.number, info)
        with contextlib.suppress(OSError):
            about.unlink()
        with contextlib.suppress(OSError):
            content.rename(self._folder / SPARE)


def _store(about: Path, content: Path, stall_ms: float) -> PartInfo:
    from edl.checkpoints.handover import PartCopy, store

    copied = msgspec.msgpack.decode(about.read_bytes(), type=PartCopy)
    with content.open("rb") as opened:
        if not (size := content.stat().st_size):
            return store(copied, memoryview(b""), stall_ms)
        # Not closed here: where it fails, the error still has views of it. It goes with the last of them.
        return store(copied, memoryview(mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)), stall_ms)


def resumed_from(path: str) -> tuple[Resumed | None, str]:
    """What the job begins with, None: it begins anew; and why that cannot be read."""
    if not path:
        return None, ""
    from edl.checkpoints.places import placed
    from edl.checkpoints.reading import open_checkpoint

    try:
        found = open_checkpoint(*placed(path))
    except EdlError as error:
        return None, f"this job was to go on from a checkpoint: {error}"
    manifest = found.manifest
    ledger = None if manifest.ledger is None else rebased(manifest.ledger)
    epoch = 0 if ledger is None else Ledger.restore(ledger).counts().epoch
    return Resumed(manifest.base + manifest.step, manifest.life, path, ledger, epoch), ""


class Publisher:
    """Of one leader."""

    def __init__(self, clock: Clock, hear: Callable[[SavingPublished | PublishingFailed], object]) -> None:
        """`hear` is told in the loop what came of it."""
        self._clock = clock
        self._hear = hear
        self._thread = ThreadPoolExecutor(1, "edl-publish")
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, record: Record) -> None:
        """The saving of `record`; comes back at once."""
        task = asyncio.get_running_loop().create_task(self._publish(record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """What is being written may come to its end: it was announced by a leader that reigned."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _publish(self, record: Record) -> None:
        saving, loop = record.saving, asyncio.get_running_loop()
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

    if record.saving is not None:
        remove_old(record.saving, record.job_policy.checkpointing.keep)
