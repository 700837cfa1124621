"""Prose names roles: the leader, a survivor, the newcomer, the worker that …

A pronoun such as "somebody" leaves a reader to guess which process or person is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RIDDLE = re.compile(r"\b(?:who|whom)ever\b|\b(?:some|no|any)body\b|\b(?:some|any)one\b", re.IGNORECASE)
ALLOWED = re.compile(r"`nobody`|--user nobody")  # the user of Linux
WRITTEN_HERE = (".py", ".md", ".js", ".css", ".cpp", ".c", ".pyi", ".yml")
NOT_OURS = ("uPlot",)


def pages() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    for folder in ("edl", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in WRITTEN_HERE and not path.name.startswith(NOT_OURS):
                yield path


def test_prose_names_roles() -> None:
    riddles = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for page in pages()
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if RIDDLE.search(ALLOWED.sub("", line))
    ]
    assert riddles == []
