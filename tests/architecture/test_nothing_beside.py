"""A clone is enough: no test, script, page, benchmark or example looks for anything that lies beside it.

What is not of the project, such as published traces or a clone of Horovod, is named by a variable of the environment.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".ci", "benchmarks", "docs", "examples", "scripts", "tests")
LISTED = [  # but this file, which has examples
    PurePosixPath(name)
    for name in subprocess.run(
        ["git", "ls-files", *FOLDERS, "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if name != str(Path(__file__).relative_to(ROOT))
]
CLIMBS = re.compile(r"((?:\.parent\b(?!\())+)|\.parents\[(\d+)\]|\bROOT\.parent\b")
UP = re.compile(r"(?<![\w./])((?:\.\./)+)([\w.-]*)")
INVENTED = ("tests", "benchmarks")  # have names such as ../secret, which a stranger might send


def outside(name: PurePosixPath, text: str) -> Iterator[str]:
    """What in a file climbs above the root of the clone, or up to what is not there."""
    depth = len(name.parts)
    if name.suffix == ".py":
        for line in text.splitlines():
            for found in re.finditer(r"__file__.*|\bHERE\b.*", line):
                steps = sum(
                    len(up) // len(".parent") if up else int(at or depth) + 1 for up, at in CLIMBS.findall(found[0])
                )
                if steps > depth:
                    yield found[0]
            if "ROOT.parent" in line or re.search(r"\bROOT\s*/\s*[\"']\.\.", line):
                yield line
    for ups, first in UP.findall(text):
        above = depth - 1 - len(ups) // len("../")
        if above < 0 or (name.parts[0] not in INVENTED and not (ROOT / name).parent.joinpath(ups, first).exists()):
            yield ups + first


def text_of(name: PurePosixPath) -> str | None:
    try:
        return (ROOT / name).read_text()
    except (UnicodeDecodeError, FileNotFoundError):  # a picture; a file that is deleted and not committed yet
        return None


def test_no_file_looks_for_what_lies_beside_the_clone() -> None:
    texts = {name: text for name in LISTED if (text := text_of(name)) is not None}
    assert len(texts) > 500
    assert {str(name): found for name, text in texts.items() if (found := list(outside(name, text)))} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tests/fixtures/a.py", 'X = Path(__file__).parents[3] / "shared"'),
        ("tests/fixtures/a.py", 'X = Path(__file__).resolve().parent.parent.parent.parent / "shared"'),
        ("tests/fixtures/a.py", 'X = ROOT / ".." / "shared"'),
        ("tests/fixtures/a.py", 'X = ROOT.parent / "shared"'),
        ("benchmarks/a.py", 'X = "../../shared/traces"'),
        ("docs/a.md", "see [there](../shared/traces)"),
        ("docs/a.md", "see [there](../../shared/traces)"),
        ("scripts/a", "cd ../shared"),
    ],
)
def test_what_would_be_found(name: str, text: str) -> None:
    assert list(outside(PurePosixPath(name), text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tests/fixtures/a.py", 'X = Path(__file__).parents[2] / "data"'),
        ("tests/fixtures/a.py", "X = Path(__file__).parent.parent.parent"),
        ("tests/unit/a.py", 'send("../secret")'),
        ("docs/a.md", "see [there](../examples/README.md)"),
        ("scripts/a", 'cd "$(dirname "${BASH_SOURCE[0]}")/.."'),
    ],
)
def test_what_is_inside_is_not(name: str, text: str) -> None:
    assert list(outside(PurePosixPath(name), text)) == []
