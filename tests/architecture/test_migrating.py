"""The page about moving a script to edl says how far a script before and after differ."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "migrating.md"
BEFORE = ROOT / "tests" / "integration" / "originals"


def difference(name: str) -> list[str]:
    before, after = (BEFORE / name).read_text(), (ROOT / "examples" / name).read_text()
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"before/{name}", f"examples/{name}", n=1)
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("name", ["horovod_pytorch.py", "horovod_tensorflow2.py"])
def test_the_page_counts_the_lines_that_go_and_come(name: str) -> None:
    lines = difference(name)
    taken, added = (sum(line.startswith(sign) for line in lines[2:]) for sign in "-+")
    of = len((BEFORE / name).read_text().splitlines())
    assert f"{taken} of its {of} lines go, {added} come" in PAGE.read_text()
