"""The leader's daemon writes the manifest of a checkpoint whose parts are all durable, and removes old checkpoints.

Owns: the content of a manifest. Does not own: when it is written (`edl.core.checkpoint`), nor its form
(`edl.checkpoints.manifest`).
"""

from __future__ import annotations

from contextlib import closing

import msgspec

import edl
from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_paths import JobFolder, placed
from edl.checkpoints.checkpoint_writer import publish
from edl.checkpoints.manifest import Manifest, StoredFile, StoredPart
from edl.checkpoints.part_files import Own, StateHead
from edl.checkpoints.pruning import prune
from edl.errors import CheckpointError
from edl.protocol.checkpoint_record import FileInfo, Saving
from edl.protocol.record import Record


def publish_saving(record: Record, now: float) -> None:
    """Publish the checkpoint that `record` saves; it is durable on return. A second call changes nothing. Raises
    CheckpointError.
    """
    saving = record.saving
    assert saving is not None
    folder, name = placed(saving.path)
    files = [part.info.files for part in saving.parts]
    head = _head(folder, name, files[0][1])
    if len(head.parts) != len(files):
        raise CheckpointError(
            f"rank 0 has cut the state for {len(head.parts)} workers, and {len(files)} have written it"
        )
    ledger = saving.ledger
    manifest = Manifest(
        job=record.job,
        life=name.life,
        base=record.resumed.step if record.resumed is not None else 0,
        step=saving.after_step,
        number=saving.number,
        generation=saving.generation,
        size=len(saving.roster),
        batch=0 if ledger is None else sum(member.batch for member in ledger.members),
        at=now,
        edl=edl.__version__,
        framework=head.framework,
        versions=head.versions,
        ledger=ledger,
        state=head.state,
        registered=head.registered,
        tensors=head.tensors,
        parts=tuple(StoredPart.of(_stored(part), slices) for (part, _), slices in zip(files, head.parts, strict=True)),
        own=tuple(_stored(own) for _, own in files),
    )
    publish(folder, manifest)


def remove_old(saving: Saving, keep: int) -> None:
    """Keep the newest `keep` checkpoints of the job that `saving` belongs to. Raises CheckpointError."""
    prune(placed(saving.path)[0], keep)


def _head(folder: JobFolder, name: CheckpointName, own: FileInfo) -> StateHead:
    with closing(folder.files.open(folder.folder(name), own.name)) as opened:
        content = opened.read(0, own.bytes)
    try:
        head = msgspec.msgpack.decode(content, type=Own).head
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{folder.path(name)}/{own.name} cannot be read: {error}") from None
    if head is None:
        raise CheckpointError(f"{folder.path(name)}/{own.name} does not say what the state is")
    return head


def _stored(file: FileInfo) -> StoredFile:
    return StoredFile(file.name, file.bytes, file.checksum)
