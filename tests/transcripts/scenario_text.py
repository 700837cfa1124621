"""The form of a transcript: comments, commands, and below each block of commands what followed from them.

    # What the scenario shows, in prose.

    register w0
    register w1
    ----
    event  job_started np=2 min=1 max=0
    ...

A block is one command a line up to `----`; what followed ends with an empty line. So a person reads it, a test replays
it, and what followed can be written anew. The form is that of etcd's `datadriven`.

Owns: reading and writing that form. Does not own: what the commands mean (`scenario_player`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

LINE: Final = "----"
NOTHING: Final = "(nothing follows)"

T = TypeVar("T")


class BadTranscript(Exception):
    """A transcript that cannot be read or played: says where, and what is wrong."""


@dataclass
class Command:
    """One line: a name, words, and options as `name=value`."""

    name: str
    words: list[str]
    options: dict[str, str]
    where: str  # file:line

    def word(self, number: int, default: str | None = None) -> str:
        """The word in that place."""
        if number < len(self.words):
            return self.words[number]
        if default is None:
            raise self.bad(f"{self.name} needs {number + 1} words")
        return default

    def flag(self, word: str) -> bool:
        """Whether that word is among them; it is not looked at again."""
        if word in self.words:
            self.words.remove(word)
            return True
        return False

    def option(self, name: str, kind: Callable[[str], T], default: T) -> T:
        """The value of `name=`; it is not looked at again."""
        return kind(self.options.pop(name)) if name in self.options else default

    def end(self, words: int) -> None:
        """Nothing may be left that was not looked at."""
        if len(self.words) > words or self.options:
            left = [*self.words[words:], *(f"{name}=" for name in self.options)]
            raise self.bad(f"{self.name} does not know {', '.join(left)}")

    def bad(self, what: str) -> BadTranscript:
        return BadTranscript(f"{self.where}: {what}")


@dataclass
class Block:
    """Commands, and what followed from them; `before` are the comments and empty lines above, as they are."""

    before: list[str] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)
    follows: list[str] = field(default_factory=list)


def read(text: str) -> list[Block]:
    """The blocks of a transcript; what stands below the last one is a block without commands."""
    blocks, block, answers = [], Block(), False
    for number, line in enumerate(text.splitlines(), 1):
        if answers and not line.strip():
            blocks.append(block)
            block, answers = Block(), False
        if answers:
            block.follows.append(line)
        elif line == LINE:
            answers = True
        elif not block.lines and (not line.strip() or line.startswith("#")):
            block.before.append(line)
        else:
            block.lines.append((number, line))
    return [*blocks, block]


def write(blocks: list[Block]) -> str:
    """The text of which `read` makes these."""
    lines: list[str] = []
    for block in blocks:
        lines += block.before
        if block.lines:
            lines += [*(line for _, line in block.lines), LINE, *block.follows]
    return "\n".join(lines).rstrip("\n") + "\n"


def command(line: str, where: str) -> Command:
    """What one line says."""
    name, *rest = shlex.split(line)
    options = dict(one.split("=", 1) for one in rest if "=" in one)
    return Command(name, [one for one in rest if "=" not in one], options, where)
