"""Loops over `range` in which a script makes its own batches: a newcomer goes on in them where the others are.

Owns: what stands for `range` in such a script, and where its loops are. Does not own: when a newcomer is told
(`edl.torchrun.script_numbers`).

Such a script has no DistributedSampler, and trains in `for step in range(n)`. Python keeps the place of that loop where
no code reaches it; so the script has a `range` of its own, which notes the iterators that it gives. A newcomer's is
advanced. Iterating costs what it does otherwise.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple, overload

from edl.torchrun.script_files import SourceFile, dotted, within

PROGRESS = ("tqdm", "track")  # functions that iterate over what they are given, one by one


class Running(NamedTuple):
    """An iteration over a range that was begun."""

    values: range
    iterator: Iterator[int]

    @property
    def done(self) -> int:
        """Count the values that were given out."""
        left: int = self.iterator.__length_hint__()  # type: ignore[attr-defined]
        return len(self.values) - left


begun: dict[tuple[CodeType, int], Running] = {}  # the newest by the line that has made the range


class ScriptRange(Sequence[int]):
    """A `range` whose iterators are noted."""

    def __init__(self, *given: Any) -> None:
        made = sys._getframe(1)
        self._values, self._where = range(*given), (made.f_code, made.f_lineno)
        self.start, self.stop, self.step = self._values.start, self._values.stop, self._values.step

    def __iter__(self) -> Iterator[int]:
        found = begun[self._where] = Running(self._values, iter(self._values))
        return found.iterator

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> range: ...

    def __getitem__(self, index: int | slice) -> int | range:
        return self._values[index]

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._values)

    def __eq__(self, other: object) -> bool:
        return self._values == (other._values if type(other) is ScriptRange else other)

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return range, (self.start, self.stop, self.step)


ScriptRange.register(range)  # so that isinstance() tells the same as ever


def makes_batches(files: Sequence[SourceFile]) -> bool:
    """Tell whether a script makes its batches itself, and updates in a loop over a range."""
    has_sampler = any({"DistributedSampler", "Fabric", "Accelerator"} & file.names for file in files)
    return not has_sampler and any(loops_in(file.tree) for file in files)


def loops_in(tree: ast.AST) -> list[tuple[ast.For, int]]:
    """Return the loops over `range`, each with the line of the range."""
    return [
        (node, made.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and (made := _range_of(node.iter)) is not None
    ]


def _range_of(node: ast.expr) -> ast.Call | None:
    if not isinstance(node, ast.Call):
        return None
    if (name := dotted(node.func)) == "range":
        return node
    is_progress = name.lower().rpartition(".")[2] in PROGRESS
    return _range_of(node.args[0]) if is_progress and node.args else None


def places(frame: FrameType, tree: ast.AST) -> dict[str, tuple[Running, str]]:
    """Return the loops in which a function of the script is, with the variable of each."""
    found = {}
    for loop, line in _loops(tree):
        running = begun.get((frame.f_code, line))
        if running is not None and within(frame.f_lineno, loop.body):
            found[f"for {line}"] = running, loop.target.id if isinstance(loop.target, ast.Name) else ""
    return found


@cache
def _loops(tree: ast.AST) -> list[tuple[ast.For, int]]:
    return loops_in(tree)


def advance(running: Running, done: int) -> int | None:
    """Go on in a loop where another worker is. Return the value that its variable has there; None: it is there, or
    farther.
    """
    if not running.done < done <= len(running.values):
        return None
    deque(itertools.islice(running.iterator, done - running.done), 0)
    return running.values[done - 1]
