"""`scripts/soak` runs every benchmark that judges what it measures."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
JUDGES = re.compile(r"\bexit code 1\b|\bverdict\b", re.IGNORECASE)  # as a benchmark's docstring says it
BY_ANOTHER_NAME = {"simulation": "seeds"}


def test_each_benchmark_that_judges_is_a_part() -> None:
    listed = re.search(r"BENCHMARKS=\((.*?)\)", (ROOT / "scripts" / "soak").read_text(), re.DOTALL)
    assert listed is not None
    texts = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in BENCHMARKS.glob("*.py")}
    judges = {name for name, text in texts.items() if f"-m benchmarks.{name}" in text and JUDGES.search(text)}
    assert len(judges) > 20
    assert judges - BY_ANOTHER_NAME.keys() <= set(listed[1].split())
