"""The worth of a job's end at a given time, and the price of workers, read from a user's file.

    price = 0.5                         # of a worker for an hour
    linear = { worth = 100, until_s = 10800 }                 # falls to nothing at that time

or, instead of `linear`, pieces: each has a constant worth up to its end, or a worth that changes in a straight line
to `to`.

    pieces = [ { worth = 100, until_s = 3600 }, { worth = 100, to = 0, until_s = 7200 } ]
"""

from __future__ import annotations

import tomllib
from itertools import pairwise

import msgspec

from edl.errors import ConfigError


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constant `worth`, or a straight line from `worth` to `to`, for ends up to `until_s`."""

    worth: float
    until_s: float
    to: float | None = None


class Utility(msgspec.Struct, frozen=True):
    """The worth of an end by its time; beyond the last piece an end is worth nothing."""

    price: float  # of a worker for an hour
    pieces: tuple[Piece, ...]

    def at(self, end_s: float) -> float:
        """Return the worth of an end at `end_s`."""
        began = 0.0
        for piece in self.pieces:
            if end_s <= piece.until_s:
                to = piece.worth if piece.to is None else piece.to
                return piece.worth + (to - piece.worth) * (end_s - began) / (piece.until_s - began)
            began = piece.until_s
        return 0.0


class _Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worth: float
    until_s: float


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    price: float
    linear: _Linear | None = None
    pieces: tuple[Piece, ...] = ()


def read(text: str, name: str) -> Utility:
    """Parse the utility in `text`, the content of the file `name`. Raises ConfigError."""
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if bool(file.linear) == bool(file.pieces):
        raise ConfigError(f"{name}: must have either linear = {{worth, until_s}} or pieces = [{{worth, until_s}}, ...]")
    pieces = file.pieces or _falling(file.linear)
    ends = [0.0, *(piece.until_s for piece in pieces)]
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise ConfigError(f"{name}: until_s must be more than 0, and grow from piece to piece")
    if file.price < 0:
        raise ConfigError(f"{name}: price = {file.price:g}: must not be negative")
    return Utility(file.price, pieces)


def _falling(linear: _Linear | None) -> tuple[Piece, ...]:
    return () if linear is None else (Piece(linear.worth, linear.until_s, 0.0),)
