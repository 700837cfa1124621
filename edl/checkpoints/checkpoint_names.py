"""Names of checkpoints, of their files and of the tensors in them.

A checkpoint's folder is named by life, number and step, in this order, so that newer checkpoints sort later. Only the
present leader can write to the coordinator the record that gives out a number: a deposed leader has no number to
publish under.

A model's parameters and buffers keep their names in the model; everything else has a prefix.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MANIFEST = "manifest.json"

_CHECKPOINT = re.compile(r"([0-9]{4,9})-([0-9]{6,12})-([0-9]{12,18})")
_ATTEMPT = r"(?:\.[1-9][0-9]{0,3})?"  # number of the attempt, if an earlier attempt has taken the name
_PART = re.compile(rf"part-([0-9]{{4,6}})-of-([0-9]{{4,6}}){_ATTEMPT}\.safetensors")
_OWN = re.compile(rf"own-([0-9]{{4,6}}){_ATTEMPT}\.msgpack")
_LIFE = re.compile(r"life-([0-9]{4,9})")
_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


class CheckpointName(NamedTuple):
    """The identity of a checkpoint of a job. A life is the time from one start of the job to its end."""

    life: int  # from 1
    number: int  # place among the checkpoints begun in this life, from 1
    step: int  # of this life

    def __str__(self) -> str:
        return f"{self.life:04d}-{self.number:06d}-{self.step:012d}"


def parse_name(text: str) -> CheckpointName | None:
    """Return None if `text` is no checkpoint's name."""
    match = _CHECKPOINT.fullmatch(text)
    name = CheckpointName(*map(int, match.groups())) if match else None
    return name if str(name) == text else None


def part_file(number: int, of: int, attempt: int = 0) -> str:
    return f"part-{number:04d}-of-{of:04d}{_again(attempt)}.safetensors"


def own_file(number: int, attempt: int = 0) -> str:
    return f"own-{number:04d}{_again(attempt)}.msgpack"


def part_of(file: str) -> tuple[int, int] | None:
    """Return a part's number and the number of parts; None if `file` is no name of a part."""
    match = _PART.fullmatch(file)
    return (int(match[1]), int(match[2])) if match else None


def owner_of(file: str) -> int | None:
    """Return the rank of the worker whose own state the file holds; None if `file` is no name of such a file."""
    match = _OWN.fullmatch(file)
    return int(match[1]) if match else None


def life_file(life: int) -> str:
    """Return the name of the file that reserves the number of a life."""
    return f"life-{life:04d}"


def life_of(file: str) -> int:
    """Return the life that a life's file or a checkpoint belongs to; 0 for any other name."""
    name, match = parse_name(file), _LIFE.fullmatch(file)
    return name.life if name else int(match[1]) if match else 0


def optimizer_tensor(number: int, path: str) -> str:
    """Number the optimizers by the order of wrapping; `path` is of the tensor in an optimizer's described state."""
    return f"optimizer/{number}/{path}"


def registered_tensor(path: str) -> str:
    return f"registered/{path}"


def draft_of(file: str, token: str) -> str:
    return f".{file}.{token}.tmp"


def is_ours(file: str) -> bool:
    """Tell whether a file, finished or not, is part of a checkpoint and may be removed with it."""
    return file == MANIFEST or bool(_PART.fullmatch(file) or _OWN.fullmatch(file) or _DRAFT.fullmatch(file))


def _again(attempt: int) -> str:
    return f".{attempt}" if attempt else ""
