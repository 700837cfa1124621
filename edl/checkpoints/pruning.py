"""Old checkpoints go, and what unfinished ones have left.

Owns: what may be deleted. That is only what is older than a checkpoint which has just been read in full and found
whole: what is newer may be in the making, by this life of the job or by another one.

A checkpoint loses its manifest first. What a death leaves of it then is unfinished, and goes the next time.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from edl.checkpoints.names import MANIFEST, CheckpointName, is_ours
from edl.checkpoints.places import JobFolder
from edl.checkpoints.port import NotAFile
from edl.checkpoints.reading import newest, open_checkpoint
from edl.errors import CheckpointError


class Pruned(NamedTuple):
    """What is left, and what is not; newest first."""

    kept: tuple[CheckpointName, ...]  # durable ones
    removed: tuple[CheckpointName, ...]


def prune(folder: JobFolder, keep: int) -> Pruned:
    """Keep the newest checkpoint that verifies, and those before it until there are `keep`, at least 1.

    Raises CheckpointError where the newest cannot be read, or something cannot be removed. The next call goes on there.
    """
    best = newest(folder).checkpoint
    if best is None:
        return Pruned((), ())
    kept, removed = [best.manifest.name], []
    for name in (one for one in folder.names() if one < best.manifest.name):
        with contextlib.suppress(NotAFile):  # a link of that name is none of ours
            if len(kept) >= max(1, keep) or _is_unfinished(folder, name):
                _remove(folder, name)
                removed.append(name)
            elif _looks_whole(folder, name):
                kept.append(name)
    return Pruned(tuple(kept), tuple(removed))


def _is_unfinished(folder: JobFolder, name: CheckpointName) -> bool:
    return MANIFEST not in folder.files.names(folder.folder(name))


def _looks_whole(folder: JobFolder, name: CheckpointName) -> bool:
    """By its manifest and the sizes of its files. What does not counts for nothing, and stays for people to look at."""
    try:
        open_checkpoint(folder, name)
    except CheckpointError:
        return False
    return True


def _remove(folder: JobFolder, name: CheckpointName) -> None:
    """What edl has written there; anything else stays, and its folder with it."""
    place = folder.folder(name)
    files = [file for file in folder.files.names(place) if is_ours(file)]
    for file in sorted(files, key=lambda file: file != MANIFEST):
        folder.files.remove(place, file)
    folder.files.remove_folder(place)
