"""How checkpoints, their files and the tensors in them are called.

A checkpoint's folder is named by life, number and step, in this order: what is newer comes later. The leader gives
out a number by a write that only a reigning one can make: so one whose reign is over has none to publish under.

A model's parameters and buffers are called as in the model; everything else has a prefix.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MANIFEST = "manifest.json"

_CHECKPOINT = re.compile(r"([0-9]{4,9})-([0-9]{6,12})-([0-9]{12,18})")
_ATTEMPT = r"(?:\.[1-9][0-9]{0,3})?"  # one that came after others of its name
_PART = re.compile(rf"part-([0-9]{{4,6}})-of-([0-9]{{4,6}}){_ATTEMPT}\.safetensors")
_OWN = re.compile(rf"own-([0-9]{{4,6}}){_ATTEMPT}\.msgpack")
_LIFE = re.compile(r"life-([0-9]{4,9})")
_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


class CheckpointName(NamedTuple):
    """Which checkpoint of a job. A life is the time from one start of the job to its end."""

    life: int  # from 1
    number: int  # of the checkpoints begun in this life, from 1
    step: int  # of this life

    def __str__(self) -> str:
        return f"{self.life:04d}-{self.number:06d}-{self.step:012d}"


def parse_name(text: str) -> CheckpointName | None:
    """None: no checkpoint is called so."""
    match = _CHECKPOINT.fullmatch(text)
    name = CheckpointName(*map(int, match.groups())) if match else None
    return name if str(name) == text else None


def part_file(number: int, of: int, attempt: int = 0) -> str:
    return f"part-{number:04d}-of-{of:04d}{_again(attempt)}.safetensors"


def own_file(number: int, attempt: int = 0) -> str:
    return f"own-{number:04d}{_again(attempt)}.msgpack"


def part_of(file: str) -> tuple[int, int] | None:
    """Its number, and of how many; None: no part is called so."""
    match = _PART.fullmatch(file)
    return (int(match[1]), int(match[2])) if match else None


def owner_of(file: str) -> int | None:
    """The number of the worker whose own state it is; None: no such file is called so."""
    match = _OWN.fullmatch(file)
    return int(match[1]) if match else None


def life_file(life: int) -> str:
    """The file by which a life has its number."""
    return f"life-{life:04d}"


def life_of(file: str) -> int:
    """0: that is no file of a life, nor a checkpoint."""
    name, match = parse_name(file), _LIFE.fullmatch(file)
    return name.life if name else int(match[1]) if match else 0


def optimizer_tensor(number: int, path: str) -> str:
    """Of an optimizer, by the order of wrapping, what lies at that path of its described state."""
    return f"optimizer/{number}/{path}"


def registered_tensor(path: str) -> str:
    """Of the registered values what lies at that path of their tree."""
    return f"registered/{path}"


def draft_of(file: str, token: str) -> str:
    """The name of a file that is being written."""
    return f".{file}.{token}.tmp"


def is_ours(file: str) -> bool:
    """A file of a checkpoint, finished or not: what may be removed with it."""
    return file == MANIFEST or bool(_PART.fullmatch(file) or _OWN.fullmatch(file) or _DRAFT.fullmatch(file))


def _again(attempt: int) -> str:
    return f".{attempt}" if attempt else ""
