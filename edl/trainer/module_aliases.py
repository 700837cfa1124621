"""Modules that scripts of Horovod's import from, such as `edl.torch.mpi_ops`, for names that lie elsewhere here.

Owns: that such an import finds them. Does not own: which there are (`edl.torch.torch_horovod_names` and its twin).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def alias(module: str, find: Callable[[str], Any]) -> ModuleType:
    """Make a module named `module`, as `package.name`, whose attributes `find` gives, or raises an error for."""
    made = ModuleType(module, "Names of Horovod's, which lie elsewhere in edl.")

    def look_up(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return find(name)

    made.__getattr__ = look_up  # type: ignore[method-assign]
    sys.modules[module] = made
    package, _, name = module.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], name, made)
    return made
