"""The leader's daemon writes the manifest of a checkpoint whose parts are all durable, and removes old checkpoints.

Owns: the content of a manifest, and which checkpoints may be deleted: only those older than a checkpoint that was just
read in full and found whole. A newer one may be in the making, by this life of the job or by another one. Does not own:
when a manifest is written (`edl.core.checkpoint`), nor its form (`edl.checkpoints.manifest`).
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

import edl
from edl.checkpoints.checkpoint_names import MANIFEST, CheckpointName, is_ours
from edl.checkpoints.checkpoint_paths import JobFolder, placed
from edl.checkpoints.checkpoint_reader import newest, open_checkpoint
from edl.checkpoints.checkpoint_storage import NotAFile
from edl.checkpoints.checkpoint_writer import publish
from edl.checkpoints.manifest import Manifest, StoredFile, StoredPart
from edl.checkpoints.part_files import Own, StateHead, joined
from edl.errors import CheckpointError
from edl.protocol.checkpoint_record import FileInfo, Saving
from edl.protocol.record import Record


def publish_saving(record: Record, now: float) -> None:
    """Publish the checkpoint that `record` saves; it is durable on return. A second call changes nothing. Raises
    CheckpointError.
    """
    saving = record.checkpoints.saving
    assert saving is not None
    folder, name = placed(saving.path)
    by_worker = _by_worker(saving)
    parts, own = ([file for files in by_worker for file in files[which::2]] for which in (0, 1))
    heads = _heads(folder, name, by_worker[0][1::2])
    state = joined(heads, len(parts))
    ledger = saving.ledger
    manifest = Manifest(
        job=record.job,
        life=name.life,
        base=record.checkpoints.resumed.step if record.checkpoints.resumed is not None else 0,
        step=saving.after_step,
        number=saving.number,
        generation=saving.generation,
        size=len(by_worker),
        batch=0 if ledger is None else sum(member.batch for member in ledger.members),
        at=now,
        edl=edl.__version__,
        framework=heads[0].framework,
        versions=heads[0].versions,
        ledger=ledger,
        state=state.state,
        registered=state.registered,
        tensors=state.tensors,
        parts=tuple(StoredPart.of(_stored(part), slices) for part, slices in zip(parts, state.parts, strict=True)),
        own=tuple(map(_stored, own)),
        stages=state.stages,
    )
    publish(folder, manifest)


def _by_worker(saving: Saving) -> list[tuple[FileInfo, ...]]:
    """Return the files of each worker, of which each of its processes has two. What is left of workers is one."""
    if not saving.remnants:
        return [part.info.files for part in saving.parts]
    by_limb: dict[int, Sequence[FileInfo]] = {}
    for remnant, part in zip(saving.remnants, saving.parts, strict=True):
        for place, limb in enumerate(remnant.limbs):
            by_limb[limb] = part.info.files[2 * place : 2 * place + 2]
    return [tuple(file for _, files in sorted(by_limb.items()) for file in files)]


def remove_old(saving: Saving, keep: int) -> None:
    """Keep the newest `keep` checkpoints of the job that `saving` belongs to. Raises CheckpointError."""
    prune(placed(saving.path)[0], keep)


def _heads(folder: JobFolder, name: CheckpointName, of_rank_0: Sequence[FileInfo]) -> list[StateHead]:
    """Return the description of the state, or that of each stage, on which all processes of it at rank 0 agree."""
    by_stage: dict[int, list[Own]] = defaultdict(list)
    for own in (_own(folder, name, one) for one in of_rank_0):
        by_stage[own.stage].append(own)
    heads = [first.head for first, *_ in by_stage.values() if first.head is not None]
    if len(heads) < len(by_stage):
        raise CheckpointError(f"{folder.path(name)}: the first process of a worker does not say what the state is")
    if any(own.layout != first.layout for first, *others in by_stage.values() for own in others):
        raise CheckpointError(
            "processes of a worker that hold one model, by a mesh, among= or the same tensors, do not hold the same: "
            "such a model is not saved; build it alike on all of them, or keep other tensors under other names"
        )
    return heads


def _own(folder: JobFolder, name: CheckpointName, own: FileInfo) -> Own:
    with closing(folder.files.open(folder.folder(name), own.name)) as opened:
        content = opened.read(0, own.bytes)
    try:
        return msgspec.msgpack.decode(content, type=Own)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{folder.path(name)}/{own.name} cannot be read: {error}") from None


def _stored(file: FileInfo) -> StoredFile:
    return StoredFile(file.name, file.bytes, file.checksum)


class Pruned(NamedTuple):
    """Checkpoints of a job; newest first."""

    kept: tuple[CheckpointName, ...]  # durable checkpoints
    removed: tuple[CheckpointName, ...]


def prune(folder: JobFolder, keep: int) -> Pruned:
    """Keep the newest checkpoint that verifies, and earlier ones until there are `keep`, at least 1.

    Raises CheckpointError if the newest cannot be read, or something cannot be removed. The next call continues there.
    A checkpoint loses its manifest first: if a crash interrupts the removal, the rest is unfinished and goes the next
    time.
    """
    best = newest(folder).checkpoint
    if best is None:
        return Pruned((), ())
    kept, removed = [best.manifest.name], []
    for name in (one for one in folder.names() if one < best.manifest.name):
        with contextlib.suppress(NotAFile):  # edl makes no links: a link of that name stays
            if len(kept) >= max(1, keep) or _is_unfinished(folder, name):
                _remove(folder, name)
                removed.append(name)
            elif _looks_whole(folder, name):
                kept.append(name)
    return Pruned(tuple(kept), tuple(removed))


def _is_unfinished(folder: JobFolder, name: CheckpointName) -> bool:
    return MANIFEST not in folder.files.names(folder.folder(name))


def _looks_whole(folder: JobFolder, name: CheckpointName) -> bool:
    """Check the manifest and the sizes of its files. A checkpoint that fails is not counted, and stays for people to
    look at.
    """
    try:
        open_checkpoint(folder, name)
    except CheckpointError:
        return False
    return True


def _remove(folder: JobFolder, name: CheckpointName) -> None:
    """Remove all files that edl has written there; any other file stays, and its folder with it."""
    place = folder.folder(name)
    files = [file for file in folder.files.names(place) if is_ours(file)]
    for file in sorted(files, key=lambda file: file != MANIFEST):
        folder.files.remove(place, file)
    folder.files.remove_folder(place)
