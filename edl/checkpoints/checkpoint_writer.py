"""Writing of a checkpoint: each worker writes its part and its own file, and then the leader the manifest.

Owns: that a file which a manifest may name is never replaced, and that publishing twice is publishing once. Does not
own: how a file becomes durable (`edl.checkpoints.checkpoint_storage`), nor which worker writes when.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from edl.checkpoints import manifest as manifests
from edl.checkpoints.checkpoint_names import MANIFEST, CheckpointName, life_file, life_of, own_file, part_file
from edl.checkpoints.checkpoint_paths import JobFolder
from edl.checkpoints.checkpoint_reader import Checkpoint
from edl.checkpoints.checkpoint_storage import AlreadyThere, Chunks
from edl.checkpoints.manifest import (
    MOST_BYTES,
    Broken,
    Checksum,
    Manifest,
    Slice,
    StoredFile,
    StoredTensor,
    chunks_of,
    summed,
)
from edl.checkpoints.part_layout import PartLayout, PartTitle, lay_out
from edl.errors import CheckpointError

MOST_ATTEMPTS = 1000  # most attempts of one worker to write under one checkpoint's name


def begin_life(folder: JobFolder) -> int:
    """Reserve and return the number of a new life: higher than all others, and given to no other start of the job.

    Raises CheckpointError.
    """
    for _ in range(MOST_ATTEMPTS):
        life = 1 + max(map(life_of, folder.files.names(folder.job)), default=0)
        try:
            folder.files.create(folder.job, life_file(life), secrets.token_hex(16).encode())
        except AlreadyThere:
            continue
        return life
    raise CheckpointError(f"too many begin job {folder.job} at once in {folder.files.where}: start it again")


def write_part(
    folder: JobFolder,
    title: PartTitle,
    slices: Sequence[Slice],
    tensors: Mapping[str, StoredTensor],
    contents: Iterable[memoryview],
) -> StoredFile:
    """Write a part; it is durable on return. Raises CheckpointError; then no manifest can name the file.

    `slices` are those of `edl.checkpoints.part_files`; `contents` is all of their bytes in that order, in any number
    of pieces.
    """
    layout = lay_out(title, slices, tensors)
    views = [view.cast("B") for view in contents]
    _check_size(layout, sum(map(len, views)), title)

    def chunks() -> Iterator[bytes]:
        yield layout.header
        for view in views:
            yield from chunks_of(view)

    return _add(folder, title.name, lambda attempt: part_file(title.number, title.of, attempt), chunks)


def write_own(folder: JobFolder, name: CheckpointName, number: int, content: bytes) -> StoredFile:
    """Write the own file of the worker of rank `number`; it is durable on return. Raises CheckpointError."""
    return _add(folder, name, lambda attempt: own_file(number, attempt), lambda: chunks_of(memoryview(content)))


def publish(folder: JobFolder, manifest: Manifest) -> str:
    """Write the manifest, so that the checkpoint is durable on return, and return its path. All files that the manifest
    names must be durable before.

    Publishing the checkpoint again, by this leader or the next one, changes nothing. Raises CheckpointError, and
    AlreadyThere if another checkpoint has its name.
    """
    if manifest.job != folder.job:
        raise CheckpointError(f"a checkpoint of job {manifest.job} cannot lie with those of job {folder.job}")
    content = manifests.encode(manifest)
    Checkpoint(folder, manifest).check_sizes()
    try:
        folder.files.create(folder.folder(manifest.name), MANIFEST, content)
    except AlreadyThere:
        if not _is_same(_published(folder, manifest.name), manifest):
            raise AlreadyThere(f"another checkpoint lies at {folder.path(manifest.name)}: it stays") from None
        folder.files.flush(folder.folder(manifest.name))
    return folder.path(manifest.name)


def _add(
    folder: JobFolder, name: CheckpointName, called: Callable[[int], str], chunks: Callable[[], Iterable[bytes]]
) -> StoredFile:
    """Write a file under the first free name: a manifest may already name an existing file."""
    there = set(folder.files.names(folder.folder(name)))
    for attempt in range(MOST_ATTEMPTS):
        file = called(attempt)
        if file in there:
            continue
        counting = _Counting(chunks)
        try:
            folder.files.write(folder.folder(name), file, counting)
        except AlreadyThere:
            continue
        return StoredFile(file, counting.sum.bytes, str(counting.sum))
    raise CheckpointError(f"{folder.path(name)} is full of attempts to write {called(0)}: remove that folder")


class _Counting:
    """The chunks of a content, with the checksum of the chunks that were yielded last."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self.sum = Checksum()

    def __call__(self) -> Iterable[bytes]:
        self.sum = Checksum()
        return summed(self._chunks(), self.sum)


def _check_size(layout: PartLayout, size: int, title: PartTitle) -> None:
    wanted = layout.bytes - len(layout.header)
    if size != wanted:
        raise CheckpointError(f"{title} has {wanted} bytes, and {size} have come for it")


def _published(folder: JobFolder, name: CheckpointName) -> Manifest | None:
    opened = folder.files.open(folder.folder(name), MANIFEST)
    try:
        return manifests.decode(opened.read(0, MOST_BYTES))
    except Broken:
        return None
    finally:
        opened.close()


def _is_same(there: Manifest | None, mine: Manifest) -> bool:
    """Tell whether both manifests describe the same state; the clocks of two leaders may differ."""
    return there is not None and msgspec.structs.replace(there, at=mine.at) == mine
