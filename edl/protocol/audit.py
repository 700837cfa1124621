"""The lines of an audit: what each worker writes down of the samples it trains (`EDL_AUDIT`, docs/audit.md).

Owns: their form, one JSON array a line with the kind in front, and reading it back. Does not own: when a line is
written (`edl.trainer.data.audit`), nor what all of them together mean (`edl.core.audit.account`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from edl.protocol.data import DataSpec, Range

VERSION: Final = 2
READABLE: Final = (1, VERSION)  # the first knew no lives


class LifeAudited(msgspec.Struct, frozen=True, array_like=True):
    """Which life of the job, and what it began with."""

    life: int = 1
    parent: int = 0  # the life that had made the checkpoint it went on from; 0: it began anew
    step: int = 0  # that checkpoint's, of that life
    job: str = ""  # that had made it


FIRST_LIFE: Final = LifeAudited()


class Began(msgspec.Struct, frozen=True, array_like=True, tag="began"):
    """The first line of each file."""

    version: int
    job: str  # empty for a script without a job
    worker: str
    life: LifeAudited = FIRST_LIFE


class DataOpened(msgspec.Struct, frozen=True, array_like=True, tag="opened"):
    """What the worker trains on; again with more epochs."""

    spec: DataSpec


class Sat(msgspec.Struct, frozen=True, array_like=True, tag="sat"):
    """The worker's ring of this generation stands, and all in it have the state of `step`."""

    generation: int
    step: int
    rank: int
    size: int


class BatchGiven(msgspec.Struct, frozen=True, array_like=True, tag="given"):
    """The script is handed what it computes `step` on, maybe some steps ahead. A later line for a step replaces it."""

    step: int
    epoch: int  # the pass that the step belongs to; samples that came back late may be of an earlier one
    ranges: tuple[Range, ...]  # positions; none at all for stand-ins of weight zero
    check: int  # CRC-32 of the sample ids as they were handed out, 8 bytes each with the lowest first


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """The worker has applied `step` in this generation (I5)."""

    generation: int
    step: int
    weight: float | None = None  # with which its samples went into the update; 0.0: no update; None: it was not seen


class DataEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The script was told that there is no more data: of so many epochs, whose last step is `step`."""

    epochs: int
    step: int


Line = Began | DataOpened | Sat | BatchGiven | Committed | DataEnded

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Line)


class Damaged(ValueError):
    """What stands at this place of a file is no line of an audit."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")


def encoded(line: Line) -> bytes:
    return _encoder.encode(line) + b"\n"


def decoded(data: bytes) -> tuple[Line, ...]:
    """The lines of a file. Its end may be torn: a worker can die, or a disk be full, in the middle of a line."""
    lines: list[Line] = []
    offset = 0
    for text in data.split(b"\n")[:-1]:  # without what follows the last newline: nothing, or a torn line
        try:
            lines.append(_decoder.decode(text))
        except msgspec.DecodeError as error:
            raise Damaged(offset, str(error)) from None
        offset += len(text) + 1
    return tuple(lines)
