"""Measure how large the project is and how it reads: `python scripts/house.py [--json] [--list MEASURE]`.

Each figure is counted from the files that git tracks, so that two commits can be compared. `--list` shows what a figure
has counted: shared_names, fragments, pass_through or private_in_tests.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import statistics
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]

# A docstring that begins with one of these continues a sentence whose beginning is a name, or has no subject.
FRAGMENTS = frozenset(
    re.findall(
        r"\w+",
        """about after again against all also alone along although among and another any anything are as at be because
        been before beside besides between both but by did does done down during each else even every everything
        except few first for from had has have he here how if in inside into is it its itself just later least less
        like many may meanwhile might more most much must neither next no nobody none nor not nothing of off on once
        one ones only or other others otherwise out over perhaps rather same several she should since so some
        something still such than that their them then there these they this those though through till to together
        too under unless until up upon usually very was were what whatever when where whether which while who
        whoever whole whom whose why will with within without would yet""",
    )
)

# Public in spite of the underscore, as the standard library documents them: of os, sys and every NamedTuple.
PUBLIC = frozenset({"_exit", "_getframe", "_asdict", "_fields", "_make", "_replace"})


def tracked(folder: str, ending: str) -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", folder]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name.endswith(ending) and (ROOT / name).is_file()]


class Source:
    """One Python file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.lines = self.text.count("\n")
        self.tree = ast.parse(self.text)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def documented(self) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def code_lines(self) -> int:
        """Count lines that hold something else than blanks, comments, imports and docstrings."""
        left_out: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom) or _is_bare_text(node):
                left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
        code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in quiet:
                code.update(range(token.start[0], token.end[0] + 1))
        return len(code - left_out)


def _is_bare_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def first_word(docstring: str) -> str:
    found = re.match(r"[A-Za-z']+", docstring)
    return found[0] if found else ""


def is_fragment(docstring: str) -> bool:
    """Tell whether its first sentence has no subject of its own and is no order: a heuristic, by the first word."""
    return first_word(docstring).lower() in FRAGMENTS


def is_pass_through(function: ast.AST) -> bool:
    """Tell whether a method only calls another one with its own arguments, or returns an attribute of an attribute."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    body = [statement for statement in function.body if not _is_bare_text(statement)]
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    if len(body) != 1 or names[:1] != ["self"] or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value
    value = value.value if isinstance(value, ast.Await) else value
    if isinstance(value, ast.Call):
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
        same = [one.id for one in given if isinstance(one, ast.Name)]
        return len(same) == len(given) and same == names[1:] and _depth(value.func) >= 2
    return isinstance(value, ast.Attribute) and len(names) == 1 and _depth(value) >= 2


def _depth(node: ast.AST | None) -> int:
    """`self.a.b` is 2; what does not begin with self is 0."""
    depth = 0
    while isinstance(node, ast.Attribute):
        node, depth = node.value, depth + 1
    return depth if isinstance(node, ast.Name) and node.id == "self" else 0


def private_uses(source: Source) -> Iterator[str]:
    """Yield private attributes of what is not the test's own."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and node.attr not in PUBLIC:
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}):
                yield f"{source.name}:{node.lineno}: .{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edl"):
            yield from (f"{source.name}:{node.lineno}: {a.name}" for a in node.names if re.match(r"_[a-z]", a.name))


def measured() -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return the figures, and what some of them have counted."""
    figures: dict[str, float] = {}
    rooms = {room: [Source(path) for path in tracked(room, ".py")] for room in ("edl", "tests", "benchmarks")}
    for room, sources in rooms.items():
        figures[f"{room}_files"] = len(sources)
        figures[f"{room}_lines"] = sum(source.lines for source in sources)
        figures[f"{room}_code_lines"] = sum(source.code_lines() for source in sources)
    own = rooms["edl"]
    sizes = [source.lines for source in own if source.path.name != "__init__.py"]
    figures["edl_median_file"] = statistics.median(sizes)
    figures["edl_largest_file"] = max(sizes)
    figures["edl_files_over_600"] = sum(size > 600 for size in sizes)
    figures["edl_files_under_40"] = sum(size < 40 for size in sizes)
    places: dict[str, list[str]] = defaultdict(list)
    for source in own:
        if source.path.name not in {"__init__.py", "__main__.py"}:
            places[source.path.name].append(source.name)
    shared = {name: files for name, files in places.items() if len(files) > 1}
    figures["edl_shared_names"] = len(shared)
    figures["edl_files_with_shared_names"] = sum(map(len, shared.values()))
    said = [
        (f"{source.name}:{getattr(node, 'lineno', 1)}", docstring)
        for source in own
        for node in source.documented()
        if (docstring := ast.get_docstring(node))
    ]
    fragments = [f"{place}: {docstring.splitlines()[0]}" for place, docstring in said if is_fragment(docstring)]
    figures["edl_docstrings"] = len(said)
    figures["edl_fragments"] = len(fragments)
    figures["edl_fragments_percent"] = round(100 * len(fragments) / len(said), 1)
    through = [
        f"{source.name}:{node.lineno}: {node.name}"
        for source in own
        for kind in ast.walk(source.tree)
        if isinstance(kind, ast.ClassDef)
        for node in kind.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_pass_through(node)
    ]
    figures["edl_pass_through"] = len(through)
    private = [use for source in rooms["tests"] for use in private_uses(source)]
    figures["tests_private"] = len(private)
    pages = tracked("docs", ".md")
    figures["docs_pages"] = len(pages)
    # A bar between two cells of a table is no word.
    figures["docs_words"] = sum(len(re.findall(r"\S*\w\S*", path.read_text())) for path in pages)
    lists = {
        "shared_names": [f"{name}: {' '.join(files)}" for name, files in sorted(shared.items())],
        "fragments": fragments,
        "pass_through": through,
        "private_in_tests": private,
    }
    return figures, lists


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", choices=["shared_names", "fragments", "pass_through", "private_in_tests"])
    arguments = parser.parse_args()
    figures, lists = measured()
    if arguments.list:
        print("\n".join(lists[arguments.list]))
    elif arguments.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' '):32} {value:>9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
