"""The data that a script gives `elastic_shard_generator`: samples that have an index, or files.

Owns: which of the two is meant; telling a wrong argument at once, with the remedy. Does not own: files (`edl.sources`).
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any

from edl.config.settings import check_home
from edl.errors import UsageError
from edl.sources.formats import format_of_name
from edl.sources.source_port import Source
from edl.sources.streams.elastic_stream import ElasticStream

SUPPORTED = "a number of samples, anything with len(), or files"


def records_of(source: Any, format_name: str | None, home: Path, patience_s: float) -> Source | None:
    """Return the records of the files that `source` names; None if it names none, so that its samples are numbers.

    `home` is the folder under which a host's workers share what they find out about files, `patience_s` the time that
    they may wait for each other. Raises UsageError, DataError, ConfigError.
    """
    if not _names_files(source, format_name):
        return None
    from edl.sources.cache import Cache  # heavy: only for scripts that train on files
    from edl.sources.opening import open_files

    check_home(home, home / "data")
    entries = [source] if isinstance(source, str | bytes | os.PathLike) else source
    records = open_files([os.fsdecode(entry) for entry in entries], format_name, Cache(home / "data", patience_s))
    if not len(records):
        raise _empty(source)
    return records


def check_stream(stream: ElasticStream, epochs: Any, *, shuffle: Any) -> None:
    """Raise UsageError for what a stream cannot be asked for."""
    if shuffle:
        raise UsageError("shuffle=True: shuffle a stream by .shuffle(buffer), which is part of its place")
    if stream.endless and epochs is not None:
        raise UsageError(f"epochs={epochs!r}: an endless stream has none; leave it away, and leave the loop by break")
    stream.check()


def files_of(source: Any, format_name: str | None, home: Path, patience_s: float) -> Source:
    """Raise UsageError if `source` names no files."""
    records = records_of(source, format_name, home, patience_s)
    if records is None:
        raise UsageError(f"ElasticDataset(source={_short(source)}): source must be a path, or a list of paths")
    return records


def samples_of(source: Any) -> int:
    """Return the number of samples of a `source` that names no files."""
    total = _number(source)
    if total < 0 or isinstance(source, bool):
        raise UsageError(f"elastic_shard_generator(source={source!r}): source must be {SUPPORTED}")
    if total == 0:
        raise _empty(source)
    return total


def positive(name: str, value: Any, meaning: str) -> int:
    number = whole(name, value, meaning)
    if number < 1:
        raise UsageError(f"{name} is {value!r}: it must be {meaning}, at least 1")
    return number


def whole(name: str, value: Any, meaning: str) -> int:
    """Return `value` as an int, if it is an integer of any library."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}: it must be {meaning}") from None


def _number(source: Any) -> int:
    try:
        return operator.index(source)
    except TypeError:
        pass
    try:
        return len(source)
    except Exception as error:
        raise UsageError(
            f"elastic_shard_generator(source={_short(source)}): source must be {SUPPORTED}, and len() of this "
            f"{type(source).__name__} fails: {error}"
        ) from error


def _names_files(source: Any, format_name: str | None) -> bool:
    """Tell whether `source` is a path, several, or strings that end as files of samples do (with `format=`, any)."""
    if isinstance(source, str | bytes | os.PathLike):
        return True
    several = isinstance(source, list | tuple) and bool(source)
    if several and all(isinstance(entry, os.PathLike) for entry in source):
        return True
    if several and all(isinstance(entry, str | os.PathLike) for entry in source):
        return format_name is not None or all(format_of_name(os.fspath(entry)) for entry in source)
    if format_name is not None:
        raise UsageError(
            f"elastic_shard_generator(format={format_name!r}) means files, so source must be a path or a list of "
            f"paths, not {_short(source)}"
        )
    return False


def _empty(source: Any) -> UsageError:
    return UsageError(
        f"elastic_shard_generator(source={_short(source)}) has no samples, so there is nothing to train: "
        "check where the source comes from (a wrong path or filter?)"
    )


def _short(source: Any) -> str:
    text = repr(source)
    return text if len(text) <= 60 else f"{text[:57]}..."
