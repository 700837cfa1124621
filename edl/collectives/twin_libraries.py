"""Two copies of Horovod's library that take turns, for each framework.

Owns: how a framework's tensors come to the one whose turn it is. Does not own: when that is
(`edl.collectives.horovod_python`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from edl.collectives.horovod_libraries import Library, Native, copy_of, nothing

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
