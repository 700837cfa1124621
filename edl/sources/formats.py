"""The formats that files may have, and the format that a file's name stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from edl.errors import UsageError

FORMATS = ("text", "csv", "jsonl", "tfrecord", "parquet")
SUFFIXES = {
    "txt": "text",
    "text": "text",
    "csv": "csv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "tfrecord": "tfrecord",
    "tfrecords": "tfrecord",
    "parquet": "parquet",
}
PACKED = ".gz"
SHARD = re.compile(r"-\d+-of-\d+$")  # train.tfrecord-00003-of-00128


def format_of_name(name: str) -> str | None:
    """Return the format that a file's name stands for; None if the name does not say."""
    packed = name.endswith(PACKED)
    bare = SHARD.sub("", name.removesuffix(PACKED))
    found = SUFFIXES.get(bare.rpartition(".")[2].lower()) if "." in bare.rpartition("/")[2] else None
    return None if packed and found == "parquet" else found


def format_of(names: Iterable[str], given: str | None) -> str:
    """Return the one format of all these files. Raises UsageError."""
    if given is not None:
        if (found := SUFFIXES.get(str(given).lower())) is not None:
            return found
        raise UsageError(f"elastic_shard_generator(format={given!r}): it must be one of {', '.join(FORMATS)}")
    first: tuple[str, str] | None = None
    for name in names:
        found = format_of_name(name)
        if found is None:
            raise UsageError(
                f"elastic_shard_generator(): the name of {name} does not say which format it has: say format=..., one "
                f"of {', '.join(FORMATS)}, or name the files that you mean, e.g. by data/*.jsonl"
            )
        if first is not None and found != first[1]:
            raise UsageError(
                f"elastic_shard_generator(): {first[0]} is {first[1]} and {name} is {found}: a source has one format"
            )
        first = first or (name, found)
    assert first is not None
    return first[1]
