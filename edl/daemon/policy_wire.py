"""The messages between a policy's caller and its process: msgpack in frames, and never a pickle."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from edl.policy.policy_job_view import Decision, View

LENGTH: Final = struct.Struct(">I")
LONGEST: Final = 4 * 1024 * 1024  # longest frame: the view of a few thousand workers


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first message: import this code. The class that it names is instantiated."""

    file: str  # the path it was read from, for tracebacks; empty: `attribute` is an entry point
    source: bytes
    attribute: str
    is_class: bool


class AskPolicy(msgspec.Struct, frozen=True, tag="ask"):
    """Ask the policy for a decision."""

    view: View


class Tabulate(msgspec.Struct, frozen=True, tag="tabulate"):
    """Ask for a function's values for 1 to `most` workers."""

    most: int


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The code is imported, and can be asked."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The user's code is wrong, or has raised."""

    reason: str


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The policy's decision; None: no opinion."""

    decision: Decision | None


class Tabulated(msgspec.Struct, frozen=True, tag="tabulated"):
    """The batch of all workers, by their number."""

    table: tuple[tuple[int, int], ...]


Question = Load | AskPolicy | Tabulate
Answer = Loaded | Failed | Decided | Tabulated


def encode(said: msgspec.Struct) -> bytes:
    """Encode a frame. Raises TypeError for values of the user's code that are neither number nor text."""
    body = msgspec.msgpack.encode(said, enc_hook=_plain)
    return LENGTH.pack(len(body)) + body


def _plain(value: Any) -> Any:
    """Convert numbers of numpy and the like to Python's."""
    if callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{value!r} is neither a number nor a text")
