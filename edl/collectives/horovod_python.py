"""Horovod's Python part for one framework, which calls one native library at a time.

Owns: whether there are two that take turns, and whose turn it is. Does not own: how they do that in one framework
(`edl.collectives.twin_libraries`), nor rings (`edl.collectives.horovod_engine`).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

from edl.collectives.horovod_libraries import Library, Native, nothing
from edl.collectives.library_guard import Guard
from edl.collectives.twin_libraries import HINDER, PAIRS

logger = logging.getLogger("edl")

OTHER_WAYS = ("mpi", "nccl", "ddl", "ccl", "cuda", "rocm")  # what two of those do to each other is not known,
TRIED = {"horovod.torch": ("nccl", "cuda")}  # but of these


class HorovodPython:
    """Give the turn to one of `libraries`: one, or two that take turns. The first one begins."""

    def __init__(self, module: str) -> None:
        """Import `module`, such as `horovod.torch`. Raises ImportError."""
        self._horovod: Any = importlib.import_module(module)
        self._basics: Any = importlib.import_module(f"{module}.mpi_ops")._basics
        self.libraries = _libraries(module)
        self._basics.MPI_LIB_CTYPES = self.libraries[0].native.calls

    @property
    def needs_elastic(self) -> bool:
        return bool(self._basics.nccl_built())

    def call(self, library: Library) -> None:
        """Let Horovod's Python part use this library, in which a ring stands, for sizes and tensors from now on."""
        self._basics.MPI_LIB_CTYPES = library.native.calls
        library.take_turn()
        self._horovod.init()  # its native part is done by now; this is the rest of it, in Python
        atexit.unregister(self._basics.shutdown)  # each init() registers it once more; ours is in place already


@cache  # a framework is bound to them, once per process
def _libraries(module: str) -> Sequence[Library]:
    operations: Any = importlib.import_module(f"{module}.mpi_ops")
    calls = operations._basics.MPI_LIB_CTYPES
    native = Native(calls._name, calls, Guard(calls._name))
    try:
        _check(module, native)
        return PAIRS[module](operations, native)
    except (OSError, ImportError) as error:
        logger.debug("no ring is formed beside one that stands: %s", error)
    forget = getattr(getattr(operations, "mpi_lib", None), "horovod_torch_reset", nothing)
    return [Library(native, nothing, forget)]


def _check(module: str, native: Native) -> None:
    """Raise ImportError if two libraries cannot take turns."""
    untried = (way for way in OTHER_WAYS if way not in TRIED.get(module, ()))
    found = [way for way in untried if getattr(native.calls, f"horovod_{way}_built")()]
    if found:
        raise ImportError(f"Horovod was built with {', '.join(found)}")
    if not native.guard.active:
        raise ImportError("there is no guard around Horovod")
    if not native.guard.whole:
        raise ImportError("the guard around Horovod does not know this one")


def hindrance(module: str, path: str, version: str) -> str:
    """Say why no ring can form beside a standing one, for `edl doctor`; empty if it can.

    `path` is Horovod's loaded library, `version` the framework's, which is not imported.
    """
    try:
        _check(module, Native(path, calls := ctypes.CDLL(path), Guard(calls._name)))
        HINDER[module](path, version)
    except (OSError, ImportError) as error:
        return str(error)
    return ""
