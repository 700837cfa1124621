"""`edl checkpoint` and `edl preempt`: save a job now, and perhaps end it; inspect a folder of checkpoints.

`edl checkpoint ls|show|verify|export` need no job, and change nothing in the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path

import msgspec

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_paths import JobFolder, Located, look
from edl.checkpoints.checkpoint_reader import Checkpoint, Unfinished, chosen, export_model, open_checkpoint
from edl.checkpoints.manifest import Broken, Manifest
from edl.cli import tables
from edl.cli.commands import heed_interrupts, located, seconds
from edl.config import Settings
from edl.errors import CheckpointError, ConfigError, EdlError
from edl.launch.locate_job import Whereabouts, kept_status
from edl.outside.job_client import PREEMPT_S, preempted, saved

BROKEN = 1
ENDS_S = 15.0  # for a launcher whose job is over to end
LOOK_S = 0.05


class CheckpointCondition(StrEnum):
    DURABLE = "durable"  # its manifest and the sizes of its files are right
    WHOLE = "whole"  # likewise, and every byte of the files is right
    UNFINISHED = "unfinished"  # it is being written, or its writer has left it so
    BROKEN = "broken"
    UNREADABLE = "unreadable"  # it cannot be read at present


class Listed(msgspec.Struct, frozen=True):
    job: str
    name: str
    path: str
    condition: CheckpointCondition
    reason: str = ""  # of its condition, if the checkpoint is not usable
    step: int | None = None  # the global step, counted over all lives
    workers: int | None = None
    bytes: int | None = None
    at: float | None = None


def ls(arguments: argparse.Namespace) -> int:
    found = list(_listed(_looked(arguments), in_full=False))
    _tell(found, arguments.json)
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Return an exit code that tells whether each job there could resume from its newest checkpoint."""
    found = list(_listed(_looked(arguments), in_full=True))
    _tell(found, arguments.json)
    newest = {one.job: one for one in reversed(found) if one.condition is not CheckpointCondition.UNFINISHED}
    wrong = [one for one in newest.values() if one.condition is not CheckpointCondition.WHOLE]
    return BROKEN if wrong or not newest else 0


def show_one(arguments: argparse.Namespace) -> int:
    found, passed_over = chosen(_looked(arguments))
    for one in passed_over:
        tables.complain(one.reason)
    if arguments.json:
        tables.say_json({"path": found.path, **msgspec.to_builtins(found.manifest)})
    else:
        _show(found)
    return 0


def export(arguments: argparse.Namespace) -> int:
    found, passed_over = chosen(_looked(arguments))
    for one in passed_over:
        tables.complain(one.reason)
    path = Path(arguments.file)
    try:
        with closing(found):
            made = export_model(found, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    told = f"{made.tensors} tensors, {made.bytes / 1e6:.1f} MB"
    tables.say(f"{path} has the model of {found.path}: step {found.step:,}, {told}")
    return 0


def _looked(arguments: argparse.Namespace) -> Located:
    return look(arguments.folder, Settings.from_given(arguments.given, os.environ).job)


def _listed(looked: Located, *, in_full: bool) -> Iterator[Listed]:
    """List the checkpoints of each job, the newest first."""
    for folder in looked.jobs:
        for name in [looked.name] if looked.name else folder.names():
            yield _listed_one(folder, name, in_full=in_full)


def _listed_one(folder: JobFolder, name: CheckpointName, *, in_full: bool) -> Listed:
    at_least = Listed(folder.job, str(name), folder.path(name), CheckpointCondition.UNFINISHED)
    try:
        found = open_checkpoint(folder, name)
        if in_full:
            found.verify()
    except Unfinished:
        return at_least
    except CheckpointError as error:
        condition = CheckpointCondition.BROKEN if isinstance(error, Broken) else CheckpointCondition.UNREADABLE
        return msgspec.structs.replace(at_least, condition=condition, reason=str(error))
    told = found.manifest
    return Listed(
        folder.job, str(name), found.path, CheckpointCondition.WHOLE if in_full else CheckpointCondition.DURABLE, "",
        told.base + told.step, told.size, told.total_bytes, told.at,
    )  # fmt: skip


def _tell(found: Sequence[Listed], json: bool) -> None:
    if json:
        tables.say_json({"checkpoints": found})
        return
    head = ("job", "checkpoint", "step", "workers", "MB", "when", "")
    tables.table(head, [_row(one) for one in found])
    for one in found:
        if one.reason:
            tables.say(one.reason, "red")


def _row(one: Listed) -> tuple[str, ...]:
    if one.step is None or one.bytes is None or one.at is None:
        return (one.job, one.name, "-", "-", "-", "-", one.condition)
    return (one.job, one.name, str(one.step), str(one.workers), _megabytes(one.bytes), _when(one.at), one.condition)


def _show(found: Checkpoint) -> None:
    told = found.manifest
    tables.say(f"checkpoint {found.path}: every byte is as it was written")
    tables.say(f"  job {told.job}   life {told.life}   step {told.base + told.step} ({told.base} in the lives before)")
    tables.say(f"  number {told.number}   generation {told.generation}   workers {told.size}{_batch(told)}")
    tables.say(f"  {told.framework}, by edl {told.edl}, {_when(told.at)}")
    if told.versions:
        tables.say(f"  with {', '.join(f'{name} {version}' for name, version in told.versions.items())}")
    if (ledger := told.ledger) is not None:
        data = f"{ledger.spec.total} samples, seed {ledger.spec.seed}"
        tables.say(f"  data: epoch {ledger.epoch} of {f'{ledger.spec.shards} shards' if ledger.spec.shards else data}")
    for what, count, size in _sorts(told):
        tables.say(f"  {what}: {count} tensor{'' if count == 1 else 's'}, {_megabytes(size)} MB")
    rows = [(file.file, str(file.bytes), file.checksum) for file in told.files]
    tables.table(("file", "bytes", "checksum"), rows)


def _batch(told: Manifest) -> str:
    return f"   samples of a step {told.batch}" if told.batch else ""


def _sorts(told: Manifest) -> Iterator[tuple[str, int, int]]:
    for belongs in ("model", "stage", "optimizer", "registered"):
        sizes = [tensor.bytes for tensor in told.tensors if tensor.belongs == belongs]
        if sizes:
            yield belongs, len(sizes), sum(sizes)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g}"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


REASON = "preempted by `edl preempt`"


def checkpoint(arguments: argparse.Namespace) -> int:
    where = located(arguments)
    tables.say(asyncio.run(_checkpoint(where, wait=arguments.wait)))
    return 0


async def _checkpoint(where: Whereabouts, *, wait: bool) -> str:
    heed_interrupts()
    try:
        async with where.client() as job:
            if not wait:
                await job.checkpoint(secrets.token_hex(8))
                return f"job {where.job}: a checkpoint is asked for"
            return f"job {where.job} is saved: {await saved(job)}"
    except asyncio.CancelledError:
        raise EdlError("interrupted; the checkpoint stays asked for") from None


def preempt(arguments: argparse.Namespace) -> int:
    where = located(arguments)
    deadline_s = seconds(arguments.deadline, "--deadline", or_none=True)
    status = asyncio.run(_preempt(where, PREEMPT_S if deadline_s is None else deadline_s))
    _wait_launcher(where)
    tables.say(f"job {where.job} is preempted: {status}")
    return 1 if "could not be saved" in status else 0


def _wait_launcher(where: Whereabouts) -> None:
    """Wait, within bounds, until the launcher that is known here has ended: the line that resumes the job is refused
    until then.
    """
    until = time.monotonic() + ENDS_S
    while where.folder is not None and (record := where.folder.read()) is not None and record.alive:
        if time.monotonic() > until:
            return
        time.sleep(LOOK_S)


async def _preempt(where: Whereabouts, deadline_s: float) -> str:
    heed_interrupts()
    try:
        async with where.client() as job:
            return (await preempted(job, REASON, deadline_s, lambda: kept_status(where))).reason
    except asyncio.CancelledError:
        raise EdlError(f"interrupted; job {where.job} goes all the same") from None
