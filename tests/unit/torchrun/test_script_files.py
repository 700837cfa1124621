"""Modules that a script imports from beside it count batches as the script does."""

from __future__ import annotations

import sys
from typing import Any

from edl.torchrun.script_files import give_names, is_of_script


def test_modules_beside_the_script_count_by_what_edl_counts(tmp_path: Any, monkeypatch: Any) -> None:
    from importlib.machinery import SourceFileLoader

    monkeypatch.setattr(SourceFileLoader, "exec_module", SourceFileLoader.exec_module)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "script"), str(tmp_path / "library"), *sys.path[1:]])
    monkeypatch.setattr(sys, "argv", ["train.py"])
    is_of_script.cache_clear()
    for place, name in (("script", "edl_test_beside"), ("library", "edl_test_library")):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{name}.py").write_text("found = enumerate([1])\n")
    give_names({"enumerate": lambda _items: "counted"})
    import edl_test_beside  # type: ignore[import-not-found]
    import edl_test_library  # type: ignore[import-not-found]

    assert edl_test_beside.found == "counted"
    assert [*edl_test_library.found] == [(0, 1)]
    assert is_of_script("train.py") and not is_of_script(f"{tmp_path}/script/site-packages/x.py")
    is_of_script.cache_clear()
