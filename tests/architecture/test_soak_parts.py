"""`scripts/soak` runs every soak, and every benchmark that judges what it measures."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {"benchmarks": ROOT / "benchmarks", "tests.soaks": ROOT / "tests" / "soaks"}
JUDGES = re.compile(r"\bexit code 1\b|\bverdict\b", re.IGNORECASE)  # as a benchmark's docstring says it
BY_ANOTHER_NAME = {"simulation": "seeds"}


def test_each_benchmark_that_judges_is_a_part() -> None:
    listed = re.search(r"BENCHMARKS=\((.*?)\)", (ROOT / "scripts" / "soak").read_text(), re.DOTALL)
    assert listed is not None
    judges = {
        path.stem
        for room, folder in ROOMS.items()
        for path in folder.glob("*.py")
        if f"-m {room}.{path.stem}" in (text := ast.get_docstring(ast.parse(path.read_text())) or "")
        and JUDGES.search(text)
    }
    assert len(judges) > 20
    assert judges - BY_ANOTHER_NAME.keys() <= set(listed[1].split())
