"""Removal of old checkpoints, and of the remains of unfinished ones.

Owns: which checkpoints may be deleted: only those older than a checkpoint that was just read in full and found whole. A
newer one may be in the making, by this life of the job or by another one.

A checkpoint loses its manifest first. If a crash interrupts the removal, the rest is unfinished and goes the next time.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from edl.checkpoints.checkpoint_names import MANIFEST, CheckpointName, is_ours
from edl.checkpoints.checkpoint_paths import JobFolder
from edl.checkpoints.checkpoint_reader import newest, open_checkpoint
from edl.checkpoints.checkpoint_storage import NotAFile
from edl.errors import CheckpointError


class Pruned(NamedTuple):
    """The checkpoints that are kept and those that were removed; newest first."""

    kept: tuple[CheckpointName, ...]  # durable checkpoints
    removed: tuple[CheckpointName, ...]


def prune(folder: JobFolder, keep: int) -> Pruned:
    """Keep the newest checkpoint that verifies, and earlier ones until there are `keep`, at least 1.

    Raises CheckpointError if the newest cannot be read, or something cannot be removed. The next call continues there.
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
