"""Horovod's native library for one framework, two copies of it that take turns, and the Python part that calls one.

Owns: what one of them is, loading a copy, and which one Horovod's Python part calls. Does not own: rings
(`edl.collectives.horovod_engine`).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from edl.collectives.library_guard import Guard, private_copy


@dataclass(frozen=True)
class Native:
    """A loaded and guarded native library."""

    path: str
    calls: Any
    guard: Guard


@dataclass(frozen=True)
class Library:
    """A native library as its framework uses it. It may hold a ring."""

    native: Native
    take_turn: Callable[[], None]  # from now on, its framework's tensors go here
    forget: Callable[[], None]  # what is known of tensors of the ring that is left
    taker: Any = None  # of its framework's tensors: a module of PyTorch's, a number among TensorFlow's

    def shut_down(self) -> None:
        """Shut down as `hvd.shutdown()` does: all members of the ring have to, or one of them has to be cut off."""
        self.forget()
        self.native.calls.horovod_shutdown()


def nothing() -> None: ...


def copy_of(path: str, change: Callable[[bytes], bytes] = lambda contents: contents) -> Native:
    """Load a changed copy of the library at `path`. Raises OSError, ImportError."""
    copy = private_copy(path, change)
    # Horovod has made the first one's symbols global: without RTLD_DEEPBIND the copy would use those.
    calls = ctypes.CDLL(copy, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    native = Native(copy, calls, Guard(copy, copied=True))
    if not native.guard.whole:
        raise ImportError("a copy of Horovod's library is not guarded")
    return native


# ------------------------------------------------------------------------------------------------------- PyTorch


def of_torch(operations: Any, native: Native) -> Sequence[Library]:
    """Return Horovod's own library and a copy. Raises OSError, ImportError.

    `horovod.torch.mpi_ops` looks up the functions that enqueue tensors in a module at each call: each library has a
    module.
    """
    first = operations.mpi_lib
    copy = copy_of(native.path)
    second = _module(copy.path, first.__name__)
    return [
        Library(one, partial(setattr, operations, "mpi_lib", module), module.horovod_torch_reset, module)
        for one, module in ((native, first), (copy, second))
    ]


def _module(path: str, like: str) -> ModuleType:
    """Import the extension module at `path`, a loaded copy of the module named `like`. Raises ImportError.

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


# ---------------------------------------------------------------------------------------------------- TensorFlow

HOROVODS = "Horovod"  # what the names of its operations begin with
COPIES = ("Horovo1", "Horovo2")  # and those of the copies: as long, so that nothing moves in the file
XLA = "HOROVOD_ENABLE_XLA_OPS"


def of_tensorflow(operations: Any, native: Native) -> Sequence[Library]:
    """Return two copies, as TensorFlow's kernels are bound to Horovod's own library. Raises OSError, ImportError."""
    if native.calls.horovod_is_initialized():
        raise ImportError("the script has called Horovod's init() before it imported edl")
    return _taking_turns(native.path, ctypes.CDLL(str(_built(operations.tf.__version__))))


def _built(version: str) -> Path:
    """Return the library that hands tensors to the copy whose turn it is. Raises ImportError if it cannot."""
    if os.environ.get(XLA):
        raise ImportError(f"with {XLA}, Horovod's operations are compiled, and bound to one library")
    built = turns_of(version)
    if not built.exists():
        raise ImportError(f"there is no {built.name}: scripts/setup builds it")
    return built


def turns_of(version: str) -> Path:
    """Return the path of `_turns.cpp`, built against this version of TensorFlow."""
    return Path(__file__).with_name(f"_turns.tensorflow-{version}.so")


def _taking_turns(path: str, turns: Any) -> Sequence[Library]:
    if not hasattr(turns, "edl_allreduce"):
        raise ImportError(f"{turns._name} is of another edl than this: scripts/setup builds it")
    turns.edl_operations.restype = ctypes.c_char_p
    names = turns.edl_operations(HOROVODS.encode()).split()
    copies = [copy_of(path, _renaming(names, prefix)) for prefix in COPIES]
    prefixes = (ctypes.c_char_p * len(COPIES))(*(prefix.encode() for prefix in COPIES))
    if turns.edl_take_turns(HOROVODS.encode(), prefixes, len(COPIES)) != len(names):
        raise ImportError("a copy of Horovod's library has other operations than itself")
    return [Library(copy, partial(turns.edl_turn_to, number), nothing, number) for number, copy in enumerate(copies)]


def _renaming(names: Sequence[bytes], prefix: str) -> Callable[[bytes], bytes]:
    """Return a function that gives the operations in a library names of their own.

    It raises ImportError unless all names are changed: TensorFlow ends the process over a name that it knows already.
    """
    rest = b"|".join(re.escape(name.removeprefix(HOROVODS.encode())) for name in names)
    whole = re.compile(rb"\0" + HOROVODS.encode() + rb"(" + rest + rb")(?=\0)")  # a fixed beginning is found quickly
    anywhere = re.compile(HOROVODS.encode() + rb"(" + rest + rb")\0")

    def rename(contents: bytes) -> bytes:
        found = {match[0][1:] for match in whole.finditer(contents)}
        renamed = whole.sub(rb"\0" + prefix.encode() + rb"\1", contents)
        if len(prefix) != len(HOROVODS) or found != set(names) or anywhere.search(renamed):
            raise ImportError("the names of Horovod's operations are not where they are expected")
        return renamed

    return rename


HINDER: Mapping[str, Callable[[str, str], object]] = {  # of the library and of the framework's version; raise as below
    "horovod.torch": lambda path, _version: copy_of(path),
    "horovod.tensorflow": lambda _path, version: _built(version),
}
PAIRS: Mapping[str, Callable[[Any, Native], Sequence[Library]]] = {
    "horovod.torch": of_torch,
    "horovod.tensorflow": of_tensorflow,
}


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
