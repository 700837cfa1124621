"""The files of a source: paths, globs, folders and URLs are resolved to a list that is equal on all workers.

Owns: finding the files and their order, on any file system that fsspec supports. Does not own: the content of files.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edl.errors import UsageError
from edl.sources.file_errors import fault, unreadable

# The names that file systems have for the version of a file.
VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
HIDDEN = (".", "_")  # files whose names begin so are no data: _SUCCESS, .crc, .part


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as it was when the source was opened."""

    fs: Any  # an fsspec file system
    path: str  # as `fs` knows it
    name: str  # as people write it: a path or a URL
    size: int
    version: str  # changes with the content; empty if the file system has no versions
    is_local: bool = False  # `path` is a path on this machine


def list_files(entries: Iterable[str]) -> tuple[DataFile, ...]:
    """Return all files of `entries`, in their order; the files of a glob or a folder are sorted by path. Raises
    UsageError, DataError.
    """
    files = tuple(file for entry in entries for file in _files_of(entry))
    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice:
        raise UsageError(f"source names {twice} twice: name each file once")
    return files


def _files_of(entry: str) -> list[DataFile]:
    fs, path = _file_system(entry)
    try:
        found = _look(fs, path, entry)
    except Exception as error:  # whatever the file system's library raises
        raise unreadable(entry, "the beginning", error) from error
    if not found:
        raise UsageError(f"source: there is no file {entry}: check the path (hidden files do not count)")
    return [_data_file(fs, path, found[path]) for path in sorted(found)]


def _file_system(entry: str) -> tuple[Any, str]:
    import fsspec  # heavy: only for scripts that train on files

    try:
        return fsspec.core.url_to_fs(entry)  # type: ignore[no-any-return]
    except (ValueError, ImportError) as error:
        raise UsageError(f"source {entry}: {error}") from error


def _look(fs: Any, path: str, entry: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return _matching(fs, path) if glob.has_magic(entry) else {}
    return _inside(fs, path) if info["type"] == "directory" else {path: info}


def _matching(fs: Any, pattern: str) -> dict[str, Mapping[str, Any]]:
    fixed = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]  # the folder without wildcards
    asks_for_hidden = _is_hidden(pattern[len(fixed) :])
    found: dict[str, Mapping[str, Any]] = {}
    for path, info in fs.glob(pattern, detail=True).items():
        if info["type"] == "directory":
            found.update(_inside(fs, path))
        elif asks_for_hidden or not _is_hidden(path[len(fixed) :]):
            found[path] = info
    return found


def _inside(fs: Any, folder: str) -> dict[str, Mapping[str, Any]]:
    within = len(folder.rstrip("/"))
    return {path: info for path, info in fs.find(folder, detail=True).items() if not _is_hidden(path[within:])}


def _is_hidden(path: str) -> bool:
    return any(part.startswith(HIDDEN) for part in path.split("/"))


def _data_file(fs: Any, path: str, info: Mapping[str, Any]) -> DataFile:
    local = "file" in _protocols(fs)
    name = path if local else fs.unstrip_protocol(path)
    if info.get("size") is None:
        raise fault(name, "has no known size, so its records have no places: copy it to where it has one")
    version = "|".join(str(info[key]) for key in VERSIONS if info.get(key) is not None)
    return DataFile(fs, path, name, int(info["size"]), version, local)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
