"""The lines of an audit: the samples that each worker has trained (`EDL_AUDIT`, docs/audit.md).

Owns: the form of a line, one JSON array with the kind in front, and reading it back. Does not own: when a line is
written (`edl.trainer.data.audit_files`), nor the account of all lines together (`edl.core.audit.sample_account`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from edl.protocol.data_nouns import DataSpec, Range

VERSION: Final = 3
READABLE: Final = (1, 2, VERSION)  # version 1 had no lives, version 2 no digests of parts


class LifeAudited(msgspec.Struct, frozen=True, array_like=True):
    """The life of the job, and the checkpoint that it resumed from."""

    life: int = 1
    parent: int = 0  # the life that had made the checkpoint it resumed from; 0: it began anew
    step: int = 0  # step of that checkpoint, counted in that life
    job: str = ""  # the job that had made the checkpoint


FIRST_LIFE: Final = LifeAudited()


class Began(msgspec.Struct, frozen=True, array_like=True, tag="began"):
    """The first line of each file."""

    version: int
    job: str  # empty for a script without a job
    worker: str
    life: LifeAudited = FIRST_LIFE


class DataOpened(msgspec.Struct, frozen=True, array_like=True, tag="opened"):
    """The data that the worker trains on; repeated when there are more epochs."""

    spec: DataSpec


class Sat(msgspec.Struct, frozen=True, array_like=True, tag="sat"):
    """The worker's ring of this generation stands, and all its members have the state of `step`."""

    generation: int
    step: int
    rank: int
    size: int


class BatchGiven(msgspec.Struct, frozen=True, array_like=True, tag="given"):
    """The script has got the samples of `step`, maybe some steps ahead. A later line for a step replaces an earlier
    one.
    """

    step: int
    epoch: int  # the pass that the step belongs to; returned samples may be of an earlier one
    ranges: tuple[Range, ...]  # positions; empty for placeholder samples of weight zero
    check: int  # CRC-32 of the sample ids as they were handed out, 8 bytes each with the lowest first


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """The worker has applied `step` in this generation (I5)."""

    generation: int
    step: int
    weight: float | None = None  # weight of its samples in the update; 0.0: there was no update; None: unknown


class PartsComputed(msgspec.Struct, frozen=True, array_like=True, tag="computed"):
    """The worker has computed parts of a step, in a job with virtual workers. A step that was void has it again."""

    step: int  # counted over all lives
    loop: int  # over the parts of this step, from 0
    digests: tuple[tuple[int, int], ...]  # virtual worker, and the digest of what its part gives, before any rounding


class DataEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The script was told that its data has ended: after `epochs` epochs, whose last step is `step`."""

    epochs: int
    step: int


class ShardEnded(msgspec.Struct, frozen=True, array_like=True, tag="shard"):
    """The worker has come to the end of a shard of a stream, which has so many items in that epoch."""

    epoch: int
    shard: int
    items: int
    skipped: bool = False  # the rest could not be read, and the job goes on without it


Line = Began | DataOpened | Sat | BatchGiven | Committed | PartsComputed | DataEnded | ShardEnded

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Line)


class Damaged(ValueError):
    """A place of a file holds no line of an audit."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")


def encoded(line: Line) -> bytes:
    return _encoder.encode(line) + b"\n"


def decoded(data: bytes) -> tuple[Line, ...]:
    """Return the lines of a file. Its end may be torn: a worker can die, or a disk be full, in the middle of a line."""
    lines: list[Line] = []
    offset = 0
    for text in data.split(b"\n")[:-1]:  # without the text after the last newline: empty, or a torn line
        try:
            lines.append(_decoder.decode(text))
        except msgspec.DecodeError as error:
            raise Damaged(offset, str(error)) from None
        offset += len(text) + 1
    return tuple(lines)
