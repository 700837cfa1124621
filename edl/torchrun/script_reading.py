"""A reading of a script of torchrun's before it runs: what it keeps from its beginning, and what is refused.

Owns: the rules of a reading, from the text of the script and of its own modules alone. Does not own: what becomes of a
finding (`edl.cli.torchrun_script`), nor what is refused while it runs (`edl.torchrun.group_names`).

A rank or a number of workers that is asked for where it is used is right at any size. One that the script keeps is that
of its beginning: `Kept` follows it through assignments, arguments and attributes of the same names in all files. Where
a kept one chooses data, samples would be lost or repeated as workers come and go. A reading knows what stands in the
text, not what is reached: it names lines, and does not decide.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from edl.torchrun.refusals import JOIN, ONE_GROUP, REFUSED_NAMES
from edl.torchrun.script_files import (
    Function,
    SourceFile,
    class_around,
    dotted,
    function_around,
    functions_in,
    own_nodes,
    within_loop,
)


class Sort(Enum):
    """The kind of value that an expression has, as far as it matters."""

    RANK = "the worker's rank"
    SIZE = "the number of workers"
    FIRST = "whether the rank is 0"
    NAMED = "a text with the rank in it"


class LineKind(Enum):
    """The meaning of a line for an elastic job."""

    SHARE = "cuts its share of the data by rank"
    FILE = "writes a file by rank"
    NUMBER = "keeps a number that was made of the number of workers"
    FIRST = "keeps whether it has rank 0"
    REFUSED = "is refused where it is reached"


REMEDIES: Final = {
    LineKind.SHARE: "the share stays that of the beginning when workers come and go: take DistributedSampler, or a job "
    "of which the size never changes, by --fixed-size",
    LineKind.FILE: "ranks move up when a worker leaves, so another worker may write the same file later",
    LineKind.NUMBER: "it stays as it was with the first number of workers: call torch.distributed.get_world_size() "
    "where it is used, if it should follow",
    LineKind.FIRST: "if that worker is lost another one has rank 0: call torch.distributed.get_rank() where it matters",
}
ENVIRONMENT: Final = {
    "RANK": Sort.RANK,
    "LOCAL_RANK": Sort.RANK,
    "WORLD_SIZE": Sort.SIZE,
    "SLURM_PROCID": Sort.RANK,
    "SLURM_NTASKS": Sort.SIZE,
}
ASKS: Final = {"get_rank": Sort.RANK, "get_world_size": Sort.SIZE}
PLAIN: Final = frozenset(("int", "max", "min", "abs", "str", "float"))  # what they return is of the same sort
COLLECTIVES: Final = frozenset(("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_object"))
SHARING: Final = frozenset(("shard", "split_dataset_by_node", "split_by_node", "islice", "slice"))
SPLITTING: Final = frozenset(("array_split", "tensor_split", "chunk", "split", "random_split", "chunked"))
PIECES: Final = ("shard", "chunk", "split", "subset", "partition")  # in names of lists with a part for each rank
READS: Final = frozenset(("open", "load", "memmap", "fromfile", "loadtxt", "read_csv", "read_parquet", "read_text",
                          "read_bytes", "load_dataset", "load_from_disk"))  # fmt: skip
WRITES: Final = frozenset(("save", "savez", "savetxt", "to_csv", "to_parquet", "dump", "write_text", "write_bytes",
                           "FileHandler", "SummaryWriter"))  # fmt: skip
DEVICES: Final = frozenset(("map_location", "device"))  # arguments that name one, which is each worker's own
LONGEST_TEXT: Final = 80
ADDING_UP: Final = ("accum", "update_freq", "update_grad", "grad_acc")  # in names of scripts that add up gradients


class ScriptLine(NamedTuple):
    file: str
    line: int
    kind: LineKind
    text: str  # of the expression
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: `{self.text}` {self.kind.value}: {self.remedy}"


class Reading(NamedTuple):
    findings: tuple[ScriptLine, ...]
    adds_up: bool  # the script may make one update of several batches
    wraps: bool  # it names DistributedDataParallel, or a library that does

    def of(self, *kinds: LineKind) -> list[ScriptLine]:
        return [one for one in self.findings if one.kind in kinds]


def read(files: Sequence[SourceFile]) -> Reading:
    kept = Kept(files)
    found = dict[tuple[str, int, LineKind], ScriptLine]()
    for file in files:
        for node, remedy, kind in _lines(file, kept):
            line, text = getattr(node, "lineno", 0), ast.unparse(node).partition("\n")[0]
            text = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
            found.setdefault((file.name, line, kind), ScriptLine(file.name, line, kind, text, remedy))
    ordered = sorted(found.values(), key=lambda one: ([file.name for file in files].index(one.file), one.line))
    names = {name for file in files for name in file.names}
    return Reading(
        tuple(ordered),
        adds_up=any(_adds_up(file) for file in files),
        wraps=bool(names & {"DistributedDataParallel", "DDP", "Fabric", "Accelerator"}),
    )


class Kept:
    """Names and attributes, in all files, that hold a rank or a number of workers.

    A variable belongs to the function that sets it, and a parameter to its own; an attribute of `self` to the class
    that sets it. Variables of modules, and other attributes, are the same in all files.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._sorts = dict[Held, Sort]()
        self._functions = {one.name: one for file in files for one in functions_in(file.tree)}
        self._made = {
            node.name: one
            for file in files
            for node in ast.walk(file.tree)
            if isinstance(node, ast.ClassDef)
            for one in node.body
            if isinstance(one, ast.FunctionDef) and one.name == "__init__"
        }
        before = -1
        while before < len(self._sorts):
            before = len(self._sorts)
            for file in files:
                self._follow(file)

    def _follow(self, file: SourceFile) -> None:
        for node in ast.walk(file.tree):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    self._assign(file, target, node.value)
            elif isinstance(node, ast.AugAssign):
                self._assign(file, node.target, node.value)
            elif isinstance(node, ast.Call):
                self._pass(file, node)

    def _assign(self, file: SourceFile, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, part in zip(target.elts, value.elts, strict=True):
                self._assign(file, one, part)
        elif (sort := self.sort(file, value)) is not None and (held := _held(target)) is not None:
            self._sorts.setdefault(held, sort)
            if isinstance(target, ast.Attribute):
                self._sorts.setdefault(Held(held.name), sort)

    def _pass(self, file: SourceFile, call: ast.Call) -> None:
        """Follow arguments into the parameters of a function of the script's own."""
        name = dotted(call.func).rpartition(".")[2]
        function, skipped = self._functions.get(name), isinstance(call.func, ast.Attribute)
        if name in self._made:
            function, skipped = self._made[name], True
        if function is None:
            return
        parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if skipped and parameters[:1] in (["self"], ["cls"]):
            parameters = parameters[1:]
        given = [*zip(parameters, call.args, strict=False)]
        given += [(one.arg, one.value) for one in call.keywords if one.arg is not None]
        for parameter, value in given:
            if (sort := self.sort(file, value)) is not None:
                self._sorts.setdefault(Held(parameter, function), sort)

    def made_of_rank(self) -> set[str]:
        """Return the variables that hold a rank, or what was made of one."""
        return {held.name for held, sort in self._sorts.items() if sort is Sort.RANK and held.name[0] != "."}

    def holds(self, node: ast.expr) -> Sort | None:
        """Return what a name or an attribute holds."""
        held = _held(node)
        return None if held is None else self._sorts.get(held)

    def sort(self, file: SourceFile, node: ast.expr) -> Sort | None:  # noqa: PLR0911 - one answer for each form
        if (asked := _asked(node)) is not None or (asked := self.holds(node)) is not None:
            return asked
        if isinstance(node, ast.Call):
            if dotted(node.func) in PLAIN and node.args:
                return self.sort(file, node.args[0])
            last = dotted(node.func).rpartition(".")[2]
            parts = [*node.args, *(one.value for one in node.keywords)]
            if last in {"format", "join", "Path"} and self._names_rank(file, parts):
                return Sort.NAMED
            return None
        if isinstance(node, ast.JoinedStr):
            values = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
            return Sort.NAMED if self._names_rank(file, values) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return Sort.FIRST if self.sort(file, node.operand) is Sort.RANK else None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = [node.left, node.comparators[0]]
            zero = any(isinstance(one, ast.Constant) and one.value == 0 for one in sides)
            return Sort.FIRST if zero and any(self.sort(file, one) is Sort.RANK for one in sides) else None
        if isinstance(node, ast.IfExp):
            return self.sort(file, node.body) or self.sort(file, node.orelse)
        if isinstance(node, ast.BinOp):
            sorts = {self.sort(file, node.left), self.sort(file, node.right)}
            text = isinstance(node.left, (ast.Constant, ast.JoinedStr)) and isinstance(node.op, (ast.Mod, ast.Add))
            if Sort.NAMED in sorts or (text and Sort.RANK in sorts and _is_text(node.left)):
                return Sort.NAMED
            return Sort.RANK if Sort.RANK in sorts else None
        return None

    def _names_rank(self, file: SourceFile, parts: Sequence[ast.expr]) -> bool:
        return any(self.sort(file, one) in {Sort.RANK, Sort.NAMED} for one in parts)

    def has(self, file: SourceFile, node: ast.AST, sort: Sort) -> bool:
        """Tell whether anything in an expression is of the sort."""
        return any(isinstance(one, ast.expr) and self.sort(file, one) is sort for one in ast.walk(node))


class Held(NamedTuple):
    """A variable of a function, or of the modules; an attribute, with a dot before it, of a class or of any object."""

    name: str
    owner: ast.AST | None = None


Line = tuple[ast.AST, str, LineKind]


def _lines(file: SourceFile, kept: Kept) -> Iterator[Line]:
    """Yield what a file's lines mean, and what to do. Of what is done where a kept rank is 0, the first line stands for
    all.
    """
    told_first = False
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            if node.slice.lower is not None and kept.sort(file, node.slice.lower) is Sort.RANK:
                yield node, REMEDIES[LineKind.SHARE], LineKind.SHARE
        elif isinstance(node, ast.Subscript) and kept.sort(file, node.slice) is Sort.RANK and _is_split(node.value):
            yield node, REMEDIES[LineKind.SHARE], LineKind.SHARE
        elif isinstance(node, ast.withitem) and (remedy := _of_context(node.context_expr)):
            yield node.context_expr, remedy, LineKind.REFUSED
        elif isinstance(node, ast.Compare) and _takes_turns(file, kept, node):
            yield node, REMEDIES[LineKind.SHARE], LineKind.SHARE
        elif isinstance(node, ast.If) and _for_first(file, kept, node.test):
            if not told_first:
                yield node.test, REMEDIES[LineKind.FIRST], LineKind.FIRST
            told_first = True
        elif isinstance(node, ast.Call):
            yield from _of_call(file, kept, node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            yield from _of_assignment(file, kept, node)


def _of_call(file: SourceFile, kept: Kept, call: ast.Call) -> Iterator[Line]:
    name = file.full_name(call.func)
    last = name.rpartition(".")[2]
    values = [*call.args, *(one.value for one in call.keywords)]
    if remedy := REFUSED_NAMES.get(name) or REFUSED_NAMES.get(f".{last}"):
        yield call, remedy, LineKind.REFUSED
        return
    if name == "torch.distributed.new_group" and any(isinstance(one, (ast.List, ast.Tuple)) for one in values[:1]):
        yield call, ONE_GROUP, LineKind.REFUSED
    ranked = any(kept.sort(file, one) is Sort.RANK for one in values)
    cuts = (last in SHARING | {"range"} and len(values) > 1) or last in SHARING - {"slice"}
    if ranked and (cuts or (last.endswith("Sampler") and last != "DistributedSampler")):
        yield call, REMEDIES[LineKind.SHARE], LineKind.SHARE
    named = [one.value for one in call.keywords if one.arg not in DEVICES]
    paths = [*call.args, *named, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    if any(kept.sort(file, one) is Sort.NAMED for one in paths):
        mode = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "mode"), None)
        written = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wax")
        if last in WRITES or (last == "open" and written):
            yield call, REMEDIES[LineKind.FILE], LineKind.FILE
        elif last in READS:
            yield call, REMEDIES[LineKind.SHARE], LineKind.SHARE


def _of_assignment(file: SourceFile, kept: Kept, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[Line]:
    value, looped = node.value, within_loop(node)
    assert value is not None
    if kept.sort(file, value) is Sort.FIRST and not (looped and _asks(value)):
        yield node, REMEDIES[LineKind.FIRST], LineKind.FIRST
        return
    products = [part for part in ast.walk(value) if isinstance(part, ast.BinOp) and _scales(part.op)]
    scaled: list[tuple[ast.AST, ast.expr]] = [(part, side) for part in products for side in (part.left, part.right)]
    if isinstance(node, ast.AugAssign) and _scales(node.op):
        scaled.append((node, value))
    # A number that is asked for in a loop, or in a function that sums up all workers' values, is that of the moment.
    momentary = looped or _collects(node)
    for product, side in scaled:
        fresh = _asked(side) is not None or (not looped and _key(side) in _set_in_function(node))
        if kept.sort(file, side) is Sort.SIZE and not (momentary and fresh):
            yield (
                product if isinstance(product, ast.AugAssign) or len(scaled) > 2 else node,
                REMEDIES[LineKind.NUMBER],
                LineKind.NUMBER,
            )
            return


def _takes_turns(file: SourceFile, kept: Kept, node: ast.Compare) -> bool:
    """Tell whether a comparison is `number % workers == rank`."""
    sides = [node.left, *node.comparators]
    turns = any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) and kept.sort(file, one.right) is Sort.SIZE
        for one in sides
    )
    return turns and any(kept.sort(file, one) is Sort.RANK for one in sides)


def _for_first(file: SourceFile, kept: Kept, test: ast.expr) -> bool:
    """Tell whether a condition is that a kept rank is 0."""
    compared = (one for one in ast.walk(test) if isinstance(one, (ast.Compare, ast.UnaryOp)))
    return any(kept.sort(file, one) is Sort.FIRST and not _asks(one) for one in compared)


def _is_split(node: ast.expr) -> bool:
    """Tell whether a list has a part of the data for each rank: by the call that makes it, or by its name."""
    name = dotted(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
    if isinstance(node, ast.Call):
        return name in SPLITTING
    return any(word in name.lower() for word in PIECES) or any(
        isinstance(made, ast.Call) and dotted(made.func).rpartition(".")[2] in SPLITTING
        for made in _made_in(_scope(node)).get(name, ())
    )


def _of_context(context: ast.expr) -> str:
    """Return what to take instead of a context manager that edl refuses: `with model.join():`."""
    is_join = isinstance(context, ast.Call) and isinstance(context.func, ast.Attribute) and context.func.attr == "join"
    return JOIN if is_join else ""


def _scales(operation: ast.operator) -> bool:
    return isinstance(operation, (ast.Mult, ast.Div, ast.FloorDiv))


def _collects(node: ast.AST) -> bool:
    """Tell whether the function around a node calls a collective."""
    return _calls_collective(function_around(node))


@cache
def _calls_collective(function: ast.AST | None) -> bool:
    calls = (one for one in ast.walk(function) if isinstance(one, ast.Call)) if function is not None else ()
    return any(dotted(one.func).rpartition(".")[2] in COLLECTIVES for one in calls)


def _set_in_function(node: ast.AST) -> frozenset[str]:
    """Return the variables that the function around a node sets."""
    return _set_in(function_around(node))


def _held(node: ast.expr) -> Held | None:
    """Return the variable or the attribute that an expression names."""
    if isinstance(node, ast.Attribute):
        around = class_around(node) if isinstance(node.value, ast.Name) and node.value.id == "self" else None
        return Held(f".{node.attr}", around if around is not None and node.attr in _attributes_of(around) else None)
    if not isinstance(node, ast.Name):
        return None
    function = function_around(node)
    while function is not None and node.id not in _bound(function):
        function = function_around(getattr(function, "parent", function))
    return Held(node.id, function)


@cache
def _bound(function: Function) -> frozenset[str]:
    """Return the variables that belong to a function."""
    given = function.args
    names = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    others = set[str]()
    for part in own_nodes(function):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
        elif isinstance(part, (ast.Global, ast.Nonlocal)):
            others.update(part.names)
    return frozenset(names - others)


@cache
def _attributes_of(kind: ast.ClassDef) -> frozenset[str]:
    """Return the attributes that a class sets in itself."""
    return frozenset(
        part.attr
        for part in ast.walk(kind)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and dotted(part.value) == "self"
    )


def _scope(node: ast.AST) -> ast.AST | None:
    """Return the function around a node, or its module."""
    above: ast.AST | None = node
    while above is not None and not isinstance(above, (ast.Module, *Function.__args__)):
        above = getattr(above, "parent", None)
    return above


@cache
def _made_in(scope: ast.AST | None) -> dict[str, list[ast.expr]]:
    """Return what is assigned to each variable in a function or a module."""
    found = dict[str, list[ast.expr]]()
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found.setdefault(_key(target), []).append(node.value)
    return found


@cache
def _set_in(function: ast.AST | None) -> frozenset[str]:
    assigned = (one for one in ast.walk(function) if isinstance(one, ast.Assign)) if function is not None else ()
    return frozenset(_key(target) for one in assigned for target in one.targets)


def _asked(node: ast.expr) -> Sort | None:
    """Return what a call or an environment variable tells now."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        if sort := ASKS.get(name.rpartition(".")[2]):
            return sort
        if name.endswith(("environ.get", "getenv")) and node.args:
            return _variable(node.args[0])
    if isinstance(node, ast.Subscript) and dotted(node.value).endswith("environ"):
        return _variable(node.slice)
    return None


def _asks(node: ast.expr) -> bool:
    return any(isinstance(one, ast.expr) and _asked(one) is not None for one in ast.walk(node))


def _variable(node: ast.expr) -> Sort | None:
    return ENVIRONMENT.get(str(node.value)) if isinstance(node, ast.Constant) else None


def _key(node: ast.expr) -> str:
    """Return the name of a variable, or of an attribute of any object."""
    return node.id if isinstance(node, ast.Name) else f".{node.attr}" if isinstance(node, ast.Attribute) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _adds_up(file: SourceFile) -> bool:
    """Tell whether a script may make one update of several batches: by a trial it is found out of how many."""
    return any(word in name.lower() for name in file.names for word in ADDING_UP) or bool(
        {"no_sync", "require_backward_grad_sync"} & file.names or any(_now_and_then(node) for node in _steps(file))
    )


def _steps(file: SourceFile) -> Iterator[ast.Call]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
            yield node


def _now_and_then(call: ast.Call) -> bool:
    """Tell whether an update stands under `if ... % ...:`, inside of a loop."""
    node: ast.AST | None = call
    while node is not None and not isinstance(node, (ast.For, ast.While, ast.FunctionDef)):
        if isinstance(node, ast.If):
            counted = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) for one in ast.walk(node.test))
            if counted:
                return True
        node = getattr(node, "parent", None)
    return False


def made_of_rank(file: str | None) -> set[str]:
    """Return the variables of a script that it makes of its rank; none where it cannot be read."""
    try:
        return Kept([SourceFile("", Path(file).read_text(errors="replace"))]).made_of_rank() if file else set()
    except (OSError, SyntaxError, RecursionError):
        return set()


def folder_of(script: Path, *, module: bool) -> Path:
    """Return the folder in which Python looks for the script's own modules."""
    return Path.cwd() if module else script.resolve().parent
