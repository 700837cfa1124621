"""Which modules are the script's own: its file, and what it imports from beside it.

Owns: telling them from libraries, and which `enumerate` they have. Does not own: how batches are counted
(`edl.torchrun.script_passes`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any


@cache
def is_of_script(file: str) -> bool:
    """Tell whether a file is the script, or lies beside it or below."""
    if not file.endswith(".py"):
        return False
    path = Path(file).resolve()
    return file == sys.argv[0] or (path.is_relative_to(sys.path[0]) and "site-packages" not in path.parts)


def count_by(counted: Callable[..., Any]) -> None:
    """Let the modules that the script imports from beside it count by `counted` in the place of `enumerate`."""
    execute = SourceFileLoader.exec_module

    def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
        if is_of_script(loader.path):
            vars(module).setdefault("enumerate", counted)
        execute(loader, module)

    SourceFileLoader.exec_module = exec_module  # type: ignore[assignment, method-assign]
