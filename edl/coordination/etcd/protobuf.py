"""Protocol Buffers' wire format, as far as etcd's messages need it.

Owns: conversion of dataclasses to bytes and back; integers, booleans, bytes, text, messages, and tuples of these. Does
not own: any message (`messages`). It is written by hand so that no process loads a second protobuf beside TensorFlow's
(docs/decisions/etcd.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast, get_args, get_type_hints

from edl.errors import PeerError

M = TypeVar("M")

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1


def numbered(number: int, default: Any = None) -> Any:
    """Declare a field of a message, whose type is the annotation. The default None declares an optional message."""
    return field(default=default, metadata={"number": number})


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    number: int
    kind: type
    many: bool


_LAYOUTS: dict[type, tuple[_Field, ...]] = {}


def _layout(message: type) -> tuple[_Field, ...]:
    if message not in _LAYOUTS:
        _LAYOUTS[message] = tuple(_described(message))
    return _LAYOUTS[message]


def _described(message: type) -> Iterator[_Field]:
    hints = get_type_hints(message)
    for one in fields(message):
        hint = hints[one.name]
        many = getattr(hint, "__origin__", None) is tuple
        (kind,) = [kind for kind in (get_args(hint) or (hint,)) if kind not in {type(None), Ellipsis}]
        yield _Field(one.name, one.metadata["number"], kind, many)


def encode(message: Any) -> bytes:
    """Leave out fields that equal their defaults, except for a message that is present and empty."""
    out = bytearray()
    for one in _layout(type(message)):
        value = getattr(message, one.name)
        if one.many and one.kind in {int, bool}:
            packed = b"".join(map(_varint, value))
            out += _with_length(one.number, packed) if value else b""
        elif one.many:
            for item in value:
                out += _with_length(one.number, _contents(item))
        elif value is None or (one.kind in {int, bool, bytes, str} and not value):
            continue
        elif one.kind in {int, bool}:
            out += _varint(one.number << 3 | _VARINT) + _varint(int(value))
        else:
            out += _with_length(one.number, _contents(value))
    return bytes(out)


def _contents(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else encode(value)


def _with_length(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    value &= _MASK  # negative numbers are ten bytes, as everywhere
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(message: type[M], data: bytes) -> M:
    """Skip fields that only a newer server knows. Raises PeerError for malformed bytes."""
    known = {one.number: one for one in _layout(message)}
    values: dict[str, Any] = {}
    try:
        for number, raw in _fields(memoryview(data)):
            if (one := known.get(number)) is not None:
                items = list(_items(one, raw))
                values[one.name] = (*values.get(one.name, ()), *items) if one.many else items[-1]
    except (IndexError, ValueError) as error:
        raise PeerError(f"the coordinator sends what is no {message.__name__}: {error}") from error
    return message(**values)


def _items(one: _Field, raw: int | memoryview) -> Iterator[Any]:
    if one.kind in {int, bool}:
        for number in _packed(raw) if isinstance(raw, memoryview) else [raw]:
            yield number != 0 if one.kind is bool else number - (number >> 63 << 64)
    elif isinstance(raw, int):
        raise ValueError(f"{one.name} is a number")
    elif one.kind is bytes:
        yield bytes(raw)
    else:
        yield str(raw, "utf-8") if one.kind is str else decode(cast("type[Any]", one.kind), raw)  # type: ignore[arg-type]


def _packed(raw: memoryview) -> Iterator[int]:
    at = 0
    while at < len(raw):
        number, at = _read_varint(raw, at)
        yield number


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, form = tag >> 3, tag & 7
        if form == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if form == _LENGTH:
            size, at = _read_varint(data, at)
        elif form in {_FIXED64, _FIXED32}:
            size = 8 if form == _FIXED64 else 4
        else:
            raise ValueError(f"field {number} has the form {form}")
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield number, data[at : at + size]
        at += size


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has no end")
