"""The page about moving a script to edl shows what the two scripts differ in, line by line."""

from __future__ import annotations

import difflib
import re
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
def test_the_page_shows_one_difference_and_counts_both(name: str) -> None:
    lines = difference(name)
    if name == "horovod_pytorch.py":  # of the other script the page links both files
        shown = [block.splitlines() for block in re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)]
        assert [line.rstrip() for line in lines] in shown
    taken, added = (sum(line.startswith(sign) for line in lines[2:]) for sign in "-+")
    of = len((BEFORE / name).read_text().splitlines())
    assert f"{taken} of its {of} lines go, {added} come" in PAGE.read_text()
