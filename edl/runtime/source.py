"""What a script may give `elastic_shard_generator` to train on. So far: samples that have an index.

Owns: telling a wrong argument at once, with the remedy. Files come later.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sized
from typing import Any

from edl.errors import UsageError

SUPPORTED = "a number of samples, or anything with len()"


def samples_of(source: int | Sized, format_name: str | None) -> int:
    """How many samples `source` has."""
    if format_name is not None or _names_files(source):
        raise UsageError(
            f"elastic_shard_generator(): {_files(source, format_name)} means files, which this version cannot read; "
            f"source must be {SUPPORTED}: read the files in your script and use the sample ids that you are given"
        )
    total = _number(source)
    if total < 0 or isinstance(source, bool):
        raise UsageError(f"elastic_shard_generator(source={source!r}): source must be {SUPPORTED}")
    if total == 0:
        raise UsageError(
            f"elastic_shard_generator(source={_short(source)}) has no samples, so there is nothing to train: "
            "check where the source comes from (a wrong path or filter?)"
        )
    return total


def positive(name: str, value: Any, meaning: str) -> int:
    """`value` as an int of at least 1."""
    number = whole(name, value, meaning)
    if number < 1:
        raise UsageError(f"{name} is {value!r}: it must be {meaning}, at least 1")
    return number


def whole(name: str, value: Any, meaning: str) -> int:
    """`value` as an int, if it is one of any library's."""
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


def _names_files(source: Any) -> bool:
    if isinstance(source, str | bytes | os.PathLike):
        return True
    return isinstance(source, list | tuple) and bool(source) and isinstance(source[0], os.PathLike)


def _files(source: Any, format_name: str | None) -> str:
    return f"source={_short(source)}" if format_name is None else f"format={format_name!r}"


def _short(source: Any) -> str:
    text = repr(source)
    return text if len(text) <= 60 else f"{text[:57]}..."
