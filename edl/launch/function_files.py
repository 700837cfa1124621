"""The folder that passes a function of `edl.run` to its workers, and its results back.

A function has no form but Python's own, so it goes by cloudpickle, as Horovod's `horovod.run` has it go. That is a
hand-over between processes of one user by files that only this user can open. Nothing of it is ever a message, and
each side looks whose a file is before it reads a byte (docs/security.md).

Owns: the names, forms and modes of these files. Does not own: starting workers (`edl.launch.function_run`), calling the
function (`edl.launch.function_worker`).
"""

from __future__ import annotations

import io
import linecache
import os
import pickle  # noqa: TID251 - files of this user's own, see above
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from edl.config.settings import OWN_HOME, check_home
from edl.errors import ConfigError, UsageError
from edl.host.memory_folders import make_folder

FUNCTION = "function"


class FunctionCall(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Raised(msgspec.Struct, frozen=True):
    """An exception that left the function."""

    at: float  # seconds since 1970
    rank: int
    text: str  # the traceback
    follows: bool  # from what befell another worker, or the job


def make_private(home: Path) -> Path:
    """Make a folder for one call that only this user can open. Raises ConfigError."""
    functions = home / "functions"
    ours = functions / socket.gethostname()  # hosts that share a home have processes of their own
    check_home(home, functions, ours)
    try:
        for folder in (home, functions, ours):
            folder.mkdir(mode=0o700, parents=folder is home, exist_ok=True)
        return make_folder(ours)
    except OSError as error:
        raise ConfigError(f"EDL_HOME={home}: cannot keep a function there: {error.strerror}; {OWN_HOME}") from None


def pickled(call: FunctionCall) -> bytes:
    """Serialize the call, after the search path of modules and the text of a notebook's cells. Raises UsageError."""
    try:
        import cloudpickle  # noqa: TID251 - see above
    except ImportError:
        raise ConfigError("edl.run() needs cloudpickle: pip install cloudpickle") from None

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
        def reducer_override(self, obj: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(obj, torch.Tensor) and obj.is_cuda:
                raise UsageError(
                    f"edl.run(fn): fn uses a tensor of this process on {obj.device}, which all workers would get on "
                    "that one device: make it inside fn, or hand over its .cpu()"
                )
            return super().reducer_override(obj)

    content = io.BytesIO()
    pickle.dump({"path": _search_path(), "cells": _cells()}, content)
    name = getattr(call.function, "__qualname__", repr(call.function))
    try:
        Pickler(content).dump((call.function, tuple(call.args), dict(call.kwargs)))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"edl.run({name}): it cannot be handed to workers: {type(error).__name__}: {error}; make inside of the "
            "function what it takes from outside of it (open files, locks, connections, generators)"
        ) from error
    return content.getvalue()


def open_call(folder: Path) -> BinaryIO:
    return _opened(folder / FUNCTION)


def read_call(file: BinaryIO) -> FunctionCall:
    """Read the call, so that its modules and the cells in tracebacks are found. Raises any error of an import."""
    with file:
        found = pickle.load(file)  # noqa: S301 - of this user's own, as `_opened` has looked
        sys.path[:] = [*found["path"], *(one for one in sys.path if one not in found["path"])]
        linecache.cache.update(found["cells"])
        return FunctionCall(*pickle.load(file))  # noqa: S301


def write_function(folder: Path, content: bytes) -> None:
    _write(folder / FUNCTION, content)


def write_result(folder: Path, life: int, rank: int, result: object) -> None:
    """Raises UsageError if the result cannot be pickled."""
    import cloudpickle  # noqa: TID251 - see above

    try:
        content: bytes = cloudpickle.dumps(result)
    except Exception as error:
        raise UsageError(
            f"edl.run(fn): what fn returned on rank {rank} cannot come back: {type(error).__name__}: {error}; return "
            "numbers, text, arrays, a state_dict()"
        ) from error
    _write(folder / f"result-{life}-{rank}-{_process()}", content)


def read_results(folder: Path) -> list[Any]:
    """Return the results of the job's last life, by rank."""
    named = [(tuple(map(int, path.name.split("-")[1:3])), path) for path in folder.glob("result-*")]
    last = max((life for (life, _), _ in named), default=0)
    return [_loaded(path) for (life, _), path in sorted(named) if life == last]


def write_raised(folder: Path, raised: Raised) -> None:
    _write(folder / f"raised-{_process()}", msgspec.json.encode(raised))


def read_raised(folder: Path) -> Raised | None:
    """Return the first exception that does not follow from another; if all do, the first."""
    found = []
    for path in folder.glob("raised-*"):
        with _opened(path) as file:
            found.append(msgspec.json.decode(file.read(), type=Raised))
    return min(found, key=lambda one: (one.follows, one.at), default=None)


def _loaded(path: Path) -> Any:
    with _opened(path) as file:
        return pickle.load(file)  # noqa: S301 - of this user's own, as `_opened` has looked


def _write(path: Path, content: bytes) -> None:
    # A reader must see all of the file or nothing.
    draft = path.with_name(f".{path.name}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def _opened(path: Path) -> BinaryIO:
    """Raises ConfigError if the file is missing, or another user could have written it."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise ConfigError(
            f"the function of edl.run() cannot be read on {socket.gethostname()} ({path}: {error.strerror}): workers "
            "on other hosts need an EDL_HOME that is shared with the one that called it"
        ) from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        file.close()
        raise ConfigError(
            f"{path} is not a file of this user alone (uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}): "
            "what edl.run() hands over is read by its own user only"
        )
    return file


def _process() -> str:
    return f"{os.getpid()}-{socket.gethostname()}"


def _search_path() -> list[str]:
    # An empty entry of the search path is the working directory.
    return [str(Path(entry).absolute()) for entry in sys.path]


def _cells() -> dict[str, Any]:
    """Return sources that are in no file, such as a notebook's cells, for tracebacks, autograph and `torch.compile`."""
    return dict(_without_file())


def _without_file() -> Iterator[tuple[str, Any]]:
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is None and not Path(name).exists():
            yield name, entry
