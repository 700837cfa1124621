"""Numbers that a script counts for itself: its iteration, its best loss.

Owns: which of them are the same on all workers, by the script's text, finding those that training changes, and giving a
newcomer the others'. Does not own: how they travel (`edl.trainer.registered_state`).

A newcomer's script comes into its loop late, and would count from the beginning. So these plain numbers travel with the
model: variables of `__main__` that have changed since the first forward pass, variables of the script's functions that
are assigned in a loop, or made of the length of a loader, while the functions run, and what both hold in objects
 such as `state.step` or `place["iteration"]`. What else a script sets before its loops stays its own, and so do what it
 makes of its
rank, and what it adds up of calls (`seen += len(batch)`): that is a worker's part of a sum.

An attribute counts for all if the script adds a constant to it, or assigns it in a loop or in a method. What it adds up
of other values, as an AverageMeter does, is a worker's part of a sum: such an attribute stays the worker's own, and so
do the others of a class that has one, but for those that count steps by their names.
"""

from __future__ import annotations

import ast
import ctypes
import linecache
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from types import FrameType, SimpleNamespace
from typing import Any, Final

from edl.torch.loop_steps import Travels
from edl.torchrun.range_loops import Running, advance, begun
from edl.torchrun.range_loops import places as loop_places
from edl.torchrun.script_files import (
    Function,
    SourceFile,
    dotted,
    function_around,
    functions_in,
    is_of_script,
    own_nodes,
    within_loop,
)

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


NUMBERS: Final = "torchrun_numbers"


class ScriptNumbers(Travels):
    """The changed numbers; a value that `edl.register` takes."""

    replaced = True

    def __init__(
        self,
        variables: MutableMapping[str, Any],
        own: Collection[str] = (),
        is_of_script: Callable[[str], bool] = is_of_script,
        *,
        is_late: bool = False,
    ) -> None:
        """`variables`: of the script's module. `own`: names of what the script makes of its rank. `is_of_script(file)`:
        whether a function's file is the script's own. `is_late`: the script has come after the job's beginning.
        """
        self._variables, self._is_of_script, self._is_late = variables, is_of_script, is_late
        tree = _tree(str(variables.get("__file__", "")))
        self._own = frozenset(own) | ({*_sums(tree)} if tree is not None else set())
        self._names = CountNames()
        self._read, self._modules = set[str](), 0  # files, and how many modules there were
        self._before = dict(self._numbers(variables))

    def now(self) -> dict[str, Any]:
        missing = object()
        mine = self._numbers(self._variables)
        changed = {name: value for name, value in mine if self._before.get(name, missing) != value}
        for frame in self._functions():
            counted = counted_in(frame.f_code.co_filename, frame.f_code.co_firstlineno)
            changed |= {_key(frame, name): value for name, value in self._numbers(frame.f_locals) if name in counted}
        changed |= {key: _value(place) for key, place in self._in_objects()}
        return changed | {key: running.done for _, key, running, _ in self._loops()}

    def take(self, found: MutableMapping[str, Any]) -> None:
        """Set the variables to another worker's, where they are numbers here too. What a late script has changed alone,
        while it passed over epochs, becomes again what it was.
        """
        there = {**self._before, **found} if self._is_late else found
        self._is_late = False
        self._variables.update({name: there[name] for name, _ in self._numbers(self._variables) if name in there})
        for frame in self._functions():
            names = [name for name, _ in self._numbers(frame.f_locals) if _key(frame, name) in found]
            if names:
                _set(frame, {name: found[_key(frame, name)] for name in names})
        for key, place in self._in_objects():
            if key in found:
                put(place, found[key])
        for frame, key, running, variable in list(self._loops()):
            value = advance(running, found[key]) if key in found else None
            if value is not None and variable:
                _set(frame, {variable: value})

    def _in_objects(self) -> Iterator[tuple[str, Place]]:
        """Yield the places of numbers that count for all workers in objects, which variables of the module hold, or of
        functions that run.
        """
        self._read_modules()
        for place in places(self._variables, self._names, self._is_own):
            yield f":{place[0]}", place
        for frame in self._functions():
            for place in places(frame.f_locals, self._names, self._is_own):
                yield _key(frame, place[0]), place

    def _read_modules(self) -> None:
        """Read the script's modules that were imported since the last call."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
            for file in files - self._read:
                if self._is_of_script(file) and (tree := _tree(file)) is not None:
                    self._names.read(tree)
            self._read |= files

    def _is_own(self, kind: type) -> bool:
        module = sys.modules.get(kind.__module__)
        return self._is_of_script(str(getattr(module, "__file__", None) or ""))

    def _loops(self) -> Iterator[tuple[FrameType, str, Running, str]]:
        """Yield the loops over a range in which the script is, and the variable of each."""
        for frame in self._functions(module=True) if begun else ():
            if (tree := _tree(frame.f_code.co_filename)) is not None:
                for name, (running, variable) in loop_places(frame, tree).items():
                    yield frame, _key(frame, name), running, variable

    def _functions(self, *, module: bool = False) -> Iterator[FrameType]:
        """Yield the script's functions that run now, innermost first; of one that has called itself, only that.
        `module`: yield the script itself, too.
        """
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        known = set[str]()
        while frame is not None:
            code = frame.f_code
            named = code.co_name.isidentifier() or (module and code.co_name == "<module>")
            if named and code.co_qualname not in known and self._is_of_script(code.co_filename):
                known.add(code.co_qualname)
                yield frame
            frame = frame.f_back

    def _numbers(self, variables: MutableMapping[str, Any]) -> list[tuple[str, Any]]:
        return [
            (name, value)
            for name, value in list(variables.items())
            if type(value) in KINDS
            and name not in self._own
            and not name.startswith("_")
            and "rank" not in name.lower()
        ]


def _set(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Set variables of a function that runs, or of the script."""
    frame.f_locals.update(values)
    # Before Python 3.13 `f_locals` of a function is a copy, which this writes back; since then it does nothing.
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _value(place: Place) -> Any:
    _, owner, name = place
    return owner[name] if isinstance(owner, dict) else getattr(owner, name)


def _key(frame: FrameType, name: str) -> str:
    return f"{frame.f_code.co_qualname}:{name}"


@cache
def counted_in(file: str, line: int) -> frozenset[str]:
    """Return the variables that the function at `line` of `file` assigns in a loop, other than the loop's own, or makes
    of the length of a loader.
    """
    names = set[str]()
    for function in _functions_of(file):
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        if first == line:
            for loop in own_nodes(function):
                if isinstance(loop, (ast.For, ast.While)):
                    names |= {name for part in loop.body for name in _assigned(part)}
                elif isinstance(loop, ast.Assign) and _measures_loader(loop.value):
                    names |= {*_assigned(loop)}
            names.difference_update(_sums(function))
    return frozenset(names)


def _measures_loader(node: ast.expr) -> bool:
    """Tell whether an expression has `len(loader)` in it: how long an epoch is, as all workers were told it."""
    lengths = (one for one in ast.walk(node) if isinstance(one, ast.Call) and dotted(one.func) == "len" and one.args)
    return any("loader" in dotted(one.args[0]).lower() for one in lengths)


def _sums(node: ast.AST) -> Iterator[str]:
    """Yield the variables to which a function or a module adds what calls return."""
    for part in own_nodes(node):
        adds = isinstance(part, ast.AugAssign) and any(isinstance(one, ast.Call) for one in ast.walk(part.value))
        if adds and isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            yield part.target.id


@cache
def _tree(file: str) -> ast.Module | None:
    try:
        return SourceFile(file, "".join(linecache.getlines(file))).tree
    except (SyntaxError, RecursionError):  # a file that has changed since it was imported
        return None


@cache
def _functions_of(file: str) -> tuple[Function, ...]:
    tree = _tree(file)
    return () if tree is None else tuple(functions_in(tree))


def _assigned(node: ast.AST) -> Iterator[str]:
    for part in (node, *own_nodes(node)):
        targets: list[ast.expr] = []
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign)):
            targets = [part.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
