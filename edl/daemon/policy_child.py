"""The process in which a user's policy runs: it receives the code, imports it, and answers questions until they end.

Owns: this process. Does not own: for how long an answer is awaited (`edl.daemon.policy_process`). Its output goes to
the log of the daemon that has started it.
"""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from edl.daemon import policy_process as wire
from edl.host.host_processes import die_with_parent
from edl.policy.policy_engine import GROUP


class Wrong(Exception):
    """The user's code has an error; the message is for people."""


def load(said: wire.Load) -> Any:
    """Import the named object; if it is a class, make an instance. Raises Wrong."""
    found = _entry_point(said.attribute) if not said.file else _attribute(said)
    if not said.is_class:
        return found
    made = _call(found, f"{getattr(found, '__name__', said.attribute)}()")
    if not callable(getattr(made, "decide", None)):
        raise Wrong(f"{said.attribute} has no method decide(view)")
    return made


def tabulate(function: Callable[[int], object], most: int) -> tuple[tuple[int, int], ...]:
    """Compute the function's batch for 1 to `most` workers. Raises Wrong."""
    table = []
    for workers in range(1, most + 1):
        batch = _call(lambda: function(workers), "it", f" for {workers} workers")  # noqa: B023 - called at once
        if type(batch) is not int or batch < 1:
            raise Wrong(
                f"it returned {batch!r} for {workers} workers; it must return the number of samples that all of them "
                "take in a step"
            )
        table.append((workers, batch))
    return tuple(table)


def _attribute(said: wire.Load) -> Any:
    module = types.ModuleType(Path(said.file).stem)
    module.__file__ = said.file
    sys.modules.setdefault(module.__name__, module)  # where dataclasses look up the module that declares them
    try:
        exec(compile(said.source, said.file, "exec"), module.__dict__)  # noqa: S102 - the user's own, by own settings
    except BaseException as error:  # noqa: BLE001 - a user's code may raise anything, and end by sys.exit()
        raise Wrong(f"{type(error).__name__}: {error}") from None
    if not hasattr(module, said.attribute):
        raise Wrong(f"{said.file} has no {said.attribute}")
    return getattr(module, said.attribute)


def _entry_point(name: str) -> Any:
    (point,) = (point for point in entry_points(group=GROUP) if point.name == name)
    return _call(point.load, "importing it")


def _call(function: Callable[[], Any], what: str, where: str = "") -> Any:
    try:
        return function()
    except BaseException as error:  # noqa: BLE001 - a user's code may raise anything, and end by sys.exit()
        raise Wrong(f"{what} raised {error!r}{where}") from None


class Child:
    """The loop of questions about one user's code."""

    def __init__(self, read: BinaryIO, write: BinaryIO) -> None:
        self._read = read
        self._write = write
        self._code: Any = None

    def serve(self) -> None:
        questions = msgspec.msgpack.Decoder(wire.Question)
        while head := self._read.read(wire.LENGTH.size):
            (length,) = wire.LENGTH.unpack(head)
            self._write.write(self._answered(questions.decode(self._read.read(length))))
            self._write.flush()

    def _answered(self, question: wire.Question) -> bytes:
        try:
            return wire.encode(self._answer(question))
        except (Wrong, TypeError) as error:
            return wire.encode(wire.Failed(str(error)[:500]))

    def _answer(self, question: wire.Question) -> wire.Answer:
        match question:
            case wire.Load():
                self._code = load(question)
                return wire.Loaded()
            case wire.AskPolicy(view):
                return wire.Decided(_call(lambda: self._code.decide(view), "it"))
            case wire.Tabulate(most):
                return wire.Tabulated(tabulate(self._code, most))


def main() -> int:
    """Entry point of `python -m edl.daemon.policy_child PARENT`."""
    die_with_parent(int(sys.argv[1]), signal.SIGKILL)
    read, write = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    Child(read, write).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
