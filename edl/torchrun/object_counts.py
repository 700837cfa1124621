"""Numbers that a script counts in objects: `state.step`, `self.best`, `place["iteration"]`.

Owns: which attributes and keys are the same on all workers, by the script's text, and finding them in its objects. Does
not own: variables, and how numbers travel (`edl.torchrun.script_numbers`).

An attribute counts for all if the script adds a constant to it, or assigns it in a loop or in a method. What it adds up
of other values, as an AverageMeter does, is a worker's part of a sum: such an attribute stays the worker's own, and so
do the others of a class that has one, but for those that count steps by their names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from edl.torchrun.script_files import Function, dotted, function_around, within_loop

KINDS: Final = (int, float)
STEPS: Final = ("step", "iter", "epoch", "update")  # in names of counts, also of a class that sums up
DEEPEST: Final = 3
MOST_ENTRIES: Final = 100  # of a mapping that is looked into: larger ones are data
CLOCKS: Final = ("time.", "perf_counter", "monotonic", "datetime.")


@dataclass(frozen=True)
class CountNames:
    """Names of attributes and of keys that a script's text counts by."""

    added: set[str] = field(default_factory=set)  # a constant is added to these
    assigned: set[str] = field(default_factory=set)
    summed: set[str] = field(default_factory=set)  # other values are added to these
    sums: set[str] = field(default_factory=set)  # classes that have one of them

    def read(self, tree: ast.AST) -> None:
        """Take the names of one more file; its nodes have a `parent`."""
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and (name := _name(node.target)):
                if isinstance(node.value, ast.Constant):
                    self.added.add(name)
                else:
                    self.summed.add(name)
                    self.sums.update(one.name for one in _around(node) if isinstance(one, ast.ClassDef))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if (name := _name(target)) and _changes(node):
                        self.assigned.add(name)

    def count(self, kind: str, name: str) -> bool:
        """Tell whether the attribute, or the key, is the same on all workers; `kind`: of the object that has it."""
        if "rank" in name.lower() or name in self.summed:
            return False
        if kind in self.sums:
            return name in self.added and any(word in name.lower() for word in STEPS)
        return name in self.added or name in self.assigned

    def __bool__(self) -> bool:
        return bool(self.added or self.assigned)


Place = tuple[str, Any, str]  # the path to a number, the object that has it, and its name there


def places(variables: MutableMapping[str, Any], names: CountNames, is_own: Callable[[type], bool]) -> Iterator[Place]:
    """Yield the places of counted numbers in what variables hold; `is_own`: tells whether a class is the script's."""
    if names:
        for name, value in list(variables.items()):
            if not name.startswith("__"):
                yield from _inside(name, value, names, is_own, DEEPEST)


def put(place: Place, value: float) -> None:
    _, owner, name = place
    if isinstance(owner, dict):
        owner[name] = value
    else:
        object.__setattr__(owner, name, value)


def _inside(path: str, owner: Any, names: CountNames, is_own: Callable[[type], bool], depth: int) -> Iterator[Place]:
    if isinstance(owner, dict):
        found, mark = owner if len(owner) <= MOST_ENTRIES else {}, "[{}]"
    elif isinstance(owner, SimpleNamespace) or is_own(type(owner)):
        found, mark = {**getattr(owner, "__dict__", {}), **_slots(owner)}, ".{}"
    else:
        return
    for name, value in list(found.items()):
        if not isinstance(name, str):
            continue
        there = path + mark.format(name)
        if type(value) in KINDS:
            if names.count(type(owner).__name__, name):
                yield there, owner, name
        elif depth > 1:
            yield from _inside(there, value, names, is_own, depth - 1)


def _slots(owner: Any) -> dict[str, Any]:
    slots = getattr(type(owner), "__slots__", ())
    names: Iterable[str] = (slots,) if isinstance(slots, str) else slots
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}


def _name(target: ast.expr) -> str:
    """Return the name of an attribute, or of a key that is written out."""
    if isinstance(target, ast.Attribute):
        return target.attr
    key = target.slice if isinstance(target, ast.Subscript) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _changes(node: ast.Assign) -> bool:
    """Tell whether an assignment is made in training: in a loop, or in a method that does not make the object."""
    function = function_around(node)
    made_once = function is None or function.name in {"__init__", "__post_init__"} or not _is_method(function)
    calls = (dotted(one.func) for one in ast.walk(node.value) if isinstance(one, ast.Call))
    return (within_loop(node) or not made_once) and not any(clock in name for name in calls for clock in CLOCKS)


def _is_method(function: Function) -> bool:
    return isinstance(getattr(function, "parent", None), ast.ClassDef)


def _around(node: ast.AST) -> Iterator[ast.AST]:
    above = getattr(node, "parent", None)
    while above is not None:
        yield above
        above = getattr(above, "parent", None)
