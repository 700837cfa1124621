"""Decisions about the process from which later workers are forked: when it is kept, and for which commands.

    NONE --the ring stands, its modules are known, there is memory--> IMPORTING --they are imported--> READY
     ^                                                                    |                              |
     |--memory is short, or it has ended----------------------------------'------------------------------'
     |
     '--it cannot be forked, it has ended too often, or the launch ends--> OFF

Owns: these decisions. Does not own: processes, memory, clocks (`edl.launch.forking`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Literal

import msgspec

GIB = 1 << 30
START_BYTES = 2 * GIB  # of memory that is available, before such a process is started
KEEP_BYTES = GIB  # and while it is kept
MOST_STARTS = 3

_ALONE = frozenset("bBdEIOPqRsSu")  # flags of Python that say how it runs, and take no argument
_WITH_ARGUMENT = frozenset("WX")


# ------------------------------------------------------------------------------------------------------- the command


class PythonLine(msgspec.Struct, frozen=True):
    program: str
    flags: tuple[str, ...]
    kind: Literal["script", "module", "code"]
    name: str  # of the script's file or the module; the code itself
    arguments: tuple[str, ...]


def python_line(command: Sequence[str]) -> PythonLine | None:
    """Return None if the line is not Python's, or a fork would run it differently."""
    if not command or not re.fullmatch(r"python[0-9.]*", command[0].rpartition("/")[2]):
        return None
    words = list(command[1:])
    flags: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return PythonLine(command[0], tuple(flags), "script", word, tuple(words)) if word.endswith(".py") else None
        for place, letter in enumerate(word[1:] or word, start=2):  # a lone "-" is the standard input
            if letter in {"c", "m"}:
                argument = word[place:] or (words.pop(0) if words else "")
                if before := word[1 : place - 1]:
                    flags.append(f"-{before}")
                kind: Literal["module", "code"] = "module" if letter == "m" else "code"
                return PythonLine(command[0], tuple(flags), kind, argument, tuple(words)) if argument else None
            if letter in _WITH_ARGUMENT:
                flags.append(word)
                if place == len(word):
                    if not words:
                        return None
                    flags.append(words.pop(0))
                break
            if letter not in _ALONE:
                return None
        else:
            flags.append(word)
    return None


# --------------------------------------------------------------------------------------------------------- the machine


class WarmStage(Enum):
    NONE = "none yet"
    IMPORTING = "a process imports what the workers have imported"
    READY = "later workers are forked"
    OFF = "later workers start as the first ones"


class RingSeen(msgspec.Struct, frozen=True):
    """The job as it is now. It comes again and again."""

    stands: bool  # a worker of this launch is in the ring
    told: bool  # such a worker has told its modules
    available_bytes: int  # of memory


class ImportsDone(msgspec.Struct, frozen=True):
    modules: int
    seconds: float


class WarmRefused(msgspec.Struct, frozen=True):
    """The process cannot be forked, or cannot be started."""

    reason: str


class WarmGone(msgspec.Struct, frozen=True):
    """The process has ended by itself, or does not answer."""


class LaunchEnds(msgspec.Struct, frozen=True): ...


WarmEvent = RingSeen | ImportsDone | WarmRefused | WarmGone | LaunchEnds


class StartWarm(msgspec.Struct, frozen=True):
    """Start a process, let it import the workers' modules, and report `ImportsDone` or `WarmRefused`."""


class EndWarm(msgspec.Struct, frozen=True): ...


WarmCommand = StartWarm | EndWarm


class WarmStarts:
    """Decide on the warm process of one launch. `words` describes its state for users."""

    def __init__(self, hindrance: str = "") -> None:
        """`hindrance`: why workers of this launch cannot be forked; empty if they can."""
        self.stage = WarmStage.OFF if hindrance else WarmStage.NONE
        self.words = f"off: {hindrance}" if hindrance else "none yet"
        self._starts = 0

    def handle(self, event: WarmEvent) -> list[WarmCommand]:
        if self.stage is WarmStage.OFF:
            return []
        match event:
            case RingSeen():
                return self._seen(event)
            case ImportsDone(modules, seconds):
                if self.stage is WarmStage.IMPORTING:
                    self.stage, self.words = WarmStage.READY, f"on: {modules} modules, imported in {seconds:.1f} s"
                return []
            case WarmRefused(reason):
                return self._off(reason)
            case WarmGone():
                return self._gone()
            case LaunchEnds():
                return self._off("the job ends")

    def _seen(self, seen: RingSeen) -> list[WarmCommand]:
        if self.stage is not WarmStage.NONE:
            if seen.available_bytes >= KEEP_BYTES:
                return []
            self.stage, self.words = WarmStage.NONE, "none: memory is short"
            return [EndWarm()]
        if not (seen.stands and seen.told):
            return []
        if seen.available_bytes < START_BYTES:
            self.words = "none: memory is short"
            return []
        self._starts += 1
        self.stage, self.words = WarmStage.IMPORTING, "none yet: modules are being imported"
        return [StartWarm()]

    def _gone(self) -> list[WarmCommand]:
        if self._starts >= MOST_STARTS:
            return self._off(f"the process has ended {self._starts} times")
        self.stage, self.words = WarmStage.NONE, "none: the process has ended"
        return [EndWarm()]

    def _off(self, reason: str) -> list[WarmCommand]:
        lived = self.stage in {WarmStage.IMPORTING, WarmStage.READY}
        self.stage, self.words = WarmStage.OFF, f"off: {reason}"
        return [EndWarm()] if lived else []
