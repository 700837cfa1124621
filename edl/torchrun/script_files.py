"""Files of a script's own: itself, and the modules beside it that it imports; as trees, and while it runs.

Owns: which files these are, what they `enumerate` by, and looks at a tree that have nothing to do with workers. Does
not own: what lines mean (`edl.torchrun.script_reading`), nor how batches are counted (`edl.torchrun.script_passes`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import edl
from edl.errors import UsageError

MOST_FILES: Final = 200
Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceFile:
    """A file of the script's. Each node of its tree has a `parent`."""

    def __init__(self, name: str, text: str) -> None:
        """Raises SyntaxError."""
        self.name, self.tree = name, ast.parse(text, name)
        self._imported = dict[str, str]()
        names = set[str]()
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                child.parent = node  # type: ignore[attr-defined]
            if isinstance(node, ast.Import):
                self._imported |= {
                    (one.asname or one.name.partition(".")[0]): one.name for one in node.names if one.asname
                }
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._imported |= {(one.asname or one.name): f"{node.module}.{one.name}" for one in node.names}
                names |= {one.name for one in node.names}
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.keyword) and node.arg:
                names.add(node.arg)
        self.names = frozenset(names)

    def full_name(self, node: ast.expr) -> str:
        """Return the dotted name of a function by which it was imported: `dist.send` is `torch.distributed.send`."""
        first, dot, rest = dotted(node).partition(".")
        return f"{self._imported.get(first, first)}{dot}{rest}"


def script_files(script: Path, folder: Path) -> list[SourceFile]:
    """Return the script and what it imports from its own folder. Raises UsageError where the script is not Python."""
    try:
        files = [SourceFile(script.name, script.read_text(errors="replace"))]
    except (SyntaxError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        hint = "; export a notebook as a .py" if script.suffix == ".ipynb" else ""
        raise UsageError(f"{script.name}{line}: this is no Python: {getattr(error, 'msg', error)}{hint}") from None
    except OSError as error:
        raise UsageError(f"{script}: {error.strerror}") from None
    known, waiting = {script.resolve()}, [(files[0], script.resolve().parent)]
    while waiting and len(files) < MOST_FILES:
        file, where = waiting.pop(0)
        for path in _imports(file, where, folder):
            if path not in known:
                known.add(path)
                try:
                    found = SourceFile(str(path.relative_to(folder)), path.read_text(errors="replace"))
                except (SyntaxError, OSError, RecursionError):  # Python says so when it imports it, if it does
                    continue
                files.append(found)
                waiting.append((found, path.parent))
    return files


def module_file(name: str, folder: Path) -> Path | None:
    """Return the file of a module that lies in `folder`."""
    path = folder.joinpath(*name.split("."))
    return next(
        (one for one in (path.with_suffix(".py"), path / "__main__.py", path / "__init__.py") if one.is_file()), None
    )


def _imports(file: SourceFile, where: Path, folder: Path) -> Iterator[Path]:
    for node in ast.walk(file.tree):
        found: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            found = [(folder, one.name) for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder if not node.level else where.joinpath(*[".."] * (node.level - 1))
            module = node.module or ""
            found = [(base, module)] if module else []
            found += [(base, f"{module}.{one.name}".lstrip(".")) for one in node.names if one.name != "*"]
        for base, name in found:
            path = base.joinpath(*name.split("."))
            for one in (path.with_suffix(".py"), path / "__init__.py"):
                if one.is_file() and one.resolve().is_relative_to(folder) and "site-packages" not in one.parts:
                    yield one.resolve()


@cache
def is_of_script(file: str) -> bool:
    """Tell whether a file is the script, or lies beside it or below."""
    if not file.endswith(".py"):
        return False
    path = Path(file).resolve()
    is_beside = path.is_relative_to(sys.path[0]) and "site-packages" not in path.parts
    return file == sys.argv[0] or (is_beside and not path.is_relative_to(Path(edl.__file__).parent))


def give_names(names: Mapping[str, Callable[..., Any]]) -> None:
    """Let these names stand beside those of Python in the modules that the script imports from beside it."""
    execute = SourceFileLoader.exec_module

    def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
        if is_of_script(loader.path):
            for name, function in names.items():
                vars(module).setdefault(name, function)
        execute(loader, module)

    SourceFileLoader.exec_module = exec_module  # type: ignore[assignment, method-assign]


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` of an expression; of a call or an item inside of it, nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def functions_in(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def function_around(node: ast.AST) -> Function | None:
    above: ast.AST | None = node
    while above is not None and not isinstance(above, Function):
        above = getattr(above, "parent", None)
    return above


def class_around(node: ast.AST) -> ast.ClassDef | None:
    above: ast.AST | None = node
    while above is not None and not isinstance(above, ast.ClassDef):
        above = getattr(above, "parent", None)
    return above


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a function, without functions and classes inside of it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*Function.__args__, ast.ClassDef, ast.Lambda)):
            yield child
            yield from own_nodes(child)


def within(line: int, body: Sequence[ast.stmt]) -> bool:
    """Tell whether a line is one of these statements'."""
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def within_loop(node: ast.AST) -> bool:
    """Tell whether a node stands in a loop of its function."""
    above = getattr(node, "parent", None)
    while above is not None and not isinstance(above, Function):
        if isinstance(above, (ast.For, ast.While)):
            return True
        above = getattr(above, "parent", None)
    return False
