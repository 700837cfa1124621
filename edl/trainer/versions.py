"""Versions of libraries that a training computes with, kept in checkpoints to explain why two runs differ."""

from __future__ import annotations

import platform
import sys
from typing import Final

LIBRARIES: Final = ("torch", "tensorflow", "keras", "horovod", "numpy", "lightning", "transformers", "accelerate")


def versions() -> dict[str, str]:
    """Return Python's version, and those of libraries that are imported in this process."""
    imported = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    return {"python": platform.python_version(), **{name: str(one) for name, one in imported.items() if one}}
