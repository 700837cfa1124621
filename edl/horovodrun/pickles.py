"""The part of Python's pickle format that Horovod's driver speaks: written by hand, and read without being loaded.

A pickle's reader executes it. Here none is loaded; and pickles written here contain names of the driver's own classes
and plain values only.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Mapping, Sequence

_LENGTH = struct.Struct("<I")
_INT = struct.Struct("<i")

Value = str | bytes | int | tuple["Value", "Value"] | Sequence["Value"] | Mapping[str, "Value"]


def written(value: Value) -> bytes:
    """Pickle a plain value."""
    return b"\x80\x03" + _body(value) + b"."


def written_object(module: str, name: str, state: Mapping[str, Value]) -> bytes:
    """Pickle an object of that class with these attributes."""
    return b"\x80\x03" + f"c{module}\n{name}\n".encode() + b")\x81" + _body(state) + b"b."


def names_in(pickled: bytes) -> set[str]:
    """Return the texts in a pickle, the names of its classes among them."""
    found: set[str] = set()
    try:
        for _, argument, _ in pickletools.genops(pickled):
            if isinstance(argument, str):
                found.update((argument, *argument.split(" ")))
    except (ValueError, IndexError, struct.error, OverflowError):  # no pickle, or a truncated one
        return set()
    return found


def _body(value: Value) -> bytes:
    match value:
        case str():
            raw = value.encode()
            return b"X" + _LENGTH.pack(len(raw)) + raw
        case bytes():
            return b"B" + _LENGTH.pack(len(value)) + value
        case int():
            return b"J" + _INT.pack(value)
        case tuple():
            first, second = value
            return _body(first) + _body(second) + b"\x86"
        case Mapping():
            return b"}(" + b"".join(_body(key) + _body(inner) for key, inner in value.items()) + b"u"
        case _:
            return b"](" + b"".join(map(_body, value)) + b"e"
