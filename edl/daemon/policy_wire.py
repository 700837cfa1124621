"""What is said between the asker of a policy and the process that it runs in: msgpack in frames, and never a pickle."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from edl.policy.view import Decision, View

LENGTH: Final = struct.Struct(">I")
LONGEST: Final = 4 * 1024 * 1024  # of a frame: the view of a few thousand workers


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first word: this is the code. The class that it names is made."""

    file: str  # where it was read, for tracebacks; empty: `attribute` is an entry point
    source: bytes
    attribute: str
    is_class: bool


class AskPolicy(msgspec.Struct, frozen=True, tag="ask"):
    """What would you do?"""

    view: View


class Tabulate(msgspec.Struct, frozen=True, tag="tabulate"):
    """Of a function: what does it say, for 1 to so many workers?"""

    most: int


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """It is there, and can be asked."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The user's code is wrong, or has raised."""

    reason: str


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """None: no opinion."""

    decision: Decision | None


class Tabulated(msgspec.Struct, frozen=True, tag="tabulated"):
    """Batch of all, by number of workers."""

    table: tuple[tuple[int, int], ...]


Question = Load | AskPolicy | Tabulate
Answer = Loaded | Failed | Decided | Tabulated


def encode(said: msgspec.Struct) -> bytes:
    """A frame. Raises TypeError for what a user's code has put in, and is neither number nor text."""
    body = msgspec.msgpack.encode(said, enc_hook=_plain)
    return LENGTH.pack(len(body)) + body


def _plain(value: Any) -> Any:
    """Numbers of numpy's and the like say what they are in Python's."""
    if callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{value!r} is neither a number nor a text")
