"""What `scripts/house.py` counts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from house import Source, is_fragment, is_pass_through, private_uses


@pytest.mark.parametrize("docstring", ["Of one trainer.", "Unless it was let go of.", "It is that.", "Whether it was."])
def test_a_docstring_without_a_subject_is_a_fragment(docstring: str) -> None:
    assert is_fragment(docstring)


@pytest.mark.parametrize("docstring", ["Return False once.", "Raises ConfigError.", "Workers of a ring, by rank."])
def test_a_docstring_with_a_subject_or_an_order_is_none(docstring: str) -> None:
    assert not is_fragment(docstring)


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("def a(self, x, *, y): return self._b.a(x, y=y)", True),
        ("async def a(self): await self._b.a()", True),
        ("def a(self): return self._b.c", True),
        ("def a(self, x): return self._b.a(x, 1)", False),
        ("def a(self): return self._b", False),
        ("def a(self, x): return self.a(x)", False),
        ("def a(x): return x.b.a()", False),
    ],
)
def test_a_method_that_decides_nothing_is_a_pass_through(method: str, passes: bool) -> None:
    assert is_pass_through(ast.parse(method).body[0]) is passes


def test_what_a_file_holds_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("house.ROOT", tmp_path)
    path = tmp_path / "a.py"
    first = '"""Words."""\n\nimport os\nfrom edl.a import _b\n\n'
    path.write_text(f"{first}# why\nx = (1,\n     2)\nself._x = y._z\nos._exit(y._replace(a=1))\n")
    source = Source(path)
    assert (source.lines, source.code_lines()) == (10, 4)
    assert list(private_uses(source)) == ["a.py:4: _b", "a.py:9: ._z"]
