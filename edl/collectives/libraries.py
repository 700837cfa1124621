"""Horovod's native library as a framework's Python part calls it, and a second one, loaded beside it.

Owns: loading the second, and what calls of Horovod's Python part go to. Does not own: rings (`edl.collectives.engine`).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import logging
import os
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from edl.collectives.copies import private_copy
from edl.collectives.guard import Guard

logger = logging.getLogger("edl")

OPERATIONS = "mpi_lib"  # what `horovod.torch.mpi_ops` calls the module whose functions enqueue tensors
OTHER_WAYS = ("mpi", "nccl", "ddl", "ccl")  # to move tensors: nobody knows what two of those do to each other


@dataclass(frozen=True)
class Library:
    """One of them, loaded. `operations`: the module whose functions enqueue tensors, where there is one."""

    path: str
    native: Any
    guard: Guard
    operations: ModuleType | None

    def shut_down(self) -> None:
        """As `hvd.shutdown()` does it: all members of the ring have to, or one of them has to be cut off."""
        if self.operations is not None:
            self.operations.horovod_torch_reset()
        self.native.horovod_shutdown()


class Face:
    """Horovod's Python part for one framework, which calls one library at a time."""

    def __init__(self, module: str) -> None:
        """Raises ImportError: `module` is `horovod.torch`, say, and must be there."""
        self._horovod: Any = importlib.import_module(module)
        self._calls: Any = importlib.import_module(f"{module}.mpi_ops")
        self._basics: Any = self._calls._basics
        native = self._basics.MPI_LIB_CTYPES
        self.first = Library(native._name, native, Guard(native._name), getattr(self._calls, OPERATIONS, None))

    @property
    def needs_elastic(self) -> bool:
        """Builds for NCCL do while they form: it lets NCCL's collectives be aborted."""
        return bool(self._basics.nccl_built())

    def call(self, library: Library) -> None:
        """From now on: this one, in which a ring stands. Whoever asks for a size or enqueues a tensor looks here."""
        self._basics.MPI_LIB_CTYPES = library.native
        if library.operations is not None:
            setattr(self._calls, OPERATIONS, library.operations)
        self._horovod.init()  # its native part is done by now; this is the rest of it, in Python
        atexit.unregister(self._basics.shutdown)  # each init() registers it once more; ours is in place already

    def second(self) -> Library | None:
        """A copy of the first, which knows nothing of it. None where that cannot be."""
        try:
            self._check()
            return self._load_copy()
        except (OSError, ImportError) as error:
            logger.debug("no ring is formed beside one that stands: %s", error)
            return None

    def _check(self) -> None:
        """Raises ImportError."""
        found = [way for way in OTHER_WAYS if getattr(self._basics, f"{way}_built")()]
        if found:
            raise ImportError(f"Horovod was built with {', '.join(found)}")
        if self.first.operations is None:
            raise ImportError(f"{self._calls.__name__} is bound to one library")
        if not self.first.guard.whole:
            raise ImportError("there is no guard around Horovod, or it does not know this one")

    def _load_copy(self) -> Library:
        """Raises OSError, ImportError."""
        assert self.first.operations is not None
        path = private_copy(self.first.path)
        # Horovod has made the first one's symbols everybody's: without RTLD_DEEPBIND the copy would use those.
        native = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        guard = Guard(path, copied=True)
        if not guard.whole:
            raise ImportError("its copy is not guarded")
        return Library(path, native, guard, _module(path, self.first.operations.__name__))


def _module(path: str, like: str) -> ModuleType:
    """The extension module at `path`, which is loaded, a copy of the one named `like`. Raises ImportError.

    pybind11 keeps modules by their names, whatever file they come from, so that each copy needs a name of its own. Only
    the last part is the file's: that of its function which makes the module.
    """
    name = f"{__name__}.{Path(path).name}.{like.rpartition('.')[2]}"
    loader = ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # as there is a loader
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
