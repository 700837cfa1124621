"""Run a user's policy in a process of its own: it may raise, hang or end, and does no harm.

Owns: that process, the messages to it (msgpack in frames, and never a pickle), and that each question has a bound. Does
not own: the questions (`edl.daemon.policy_runner`).

The methods block, for at most BOOT_S or DECIDE_S: call them on a thread. Make the process on the main thread, though,
as it ends with the thread that made it (`edl.host.host_processes.die_with_parent`).
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from edl.errors import ConfigError, EdlError
from edl.policy.policy_job_view import Decision, View

LENGTH: Final = struct.Struct(">I")
LONGEST: Final = 4 * 1024 * 1024  # longest frame: the view of a few thousand workers


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first message: import this code. The class that it names is instantiated."""

    file: str  # the path it was read from, for tracebacks; empty: `attribute` is an entry point
    source: bytes
    attribute: str
    is_class: bool


class AskPolicy(msgspec.Struct, frozen=True, tag="ask"):
    view: View


class Tabulate(msgspec.Struct, frozen=True, tag="tabulate"):
    """Ask for a function's values for 1 to `most` workers."""

    most: int


class Loaded(msgspec.Struct, frozen=True, tag="loaded"): ...


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The user's code is wrong, or has raised."""

    reason: str


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The policy's decision; None: no opinion."""

    decision: Decision | None


class Tabulated(msgspec.Struct, frozen=True, tag="tabulated"):
    """The batch of all workers, by their number."""

    table: tuple[tuple[int, int], ...]


Question = Load | AskPolicy | Tabulate
Answer = Loaded | Failed | Decided | Tabulated


def encode(said: msgspec.Struct) -> bytes:
    """Raise TypeError for values of the user's code that are neither number nor text."""
    body = msgspec.msgpack.encode(said, enc_hook=_plain)
    return LENGTH.pack(len(body)) + body


def _plain(value: Any) -> Any:
    """Convert numbers of numpy and the like to Python's."""
    if callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{value!r} is neither a number nor a text")


A = TypeVar("A", Loaded, Decided, Tabulated)

BOOT_S: Final = 30.0  # for a user's imports, of a framework too
DECIDE_S: Final = 5.0
REASON_LENGTH: Final = 500
MOST_NUMBERS: Final = 100


class PolicyFailed(EdlError):
    """The policy raised, hung, ended, or gave an invalid answer. The message continues "the job's policy"."""


class Code(Protocol):
    """The code to run: `edl.daemon.policy_loader.Code`."""

    @property
    def option(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def source(self) -> bytes: ...
    @property
    def attribute(self) -> str: ...


class PolicyProcess:
    """A process with one user's code in it. Close it, or use it as a context."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._turn = threading.Lock()
        self._answers = msgspec.msgpack.Decoder(Answer)
        argv = [sys.executable, "-P", "-m", "edl.daemon.policy_child", str(os.getpid())]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Harmless twice, and while a thread waits for an answer, which then fails."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with self._turn:
            for end in (self._process.stdin, self._process.stdout):
                if end is not None:
                    end.close()

    # --------------------------------------------------------------------------------------------------- what is asked

    def load(self, *, is_class: bool = True) -> None:
        """Let it import the code. Raises ConfigError."""
        code = self._code
        try:
            self._ask(Load(code.file, code.source, code.attribute, is_class), BOOT_S, Loaded)
        except PolicyFailed as error:
            raise self._wrong(error) from None

    def decide(self, view: View) -> Decision | None:
        """Decide as any policy does. Raises PolicyFailed."""
        answer = self._ask(AskPolicy(view), DECIDE_S, Decided)
        return None if answer.decision is None else _checked(answer.decision)

    def table(self, most: int) -> tuple[tuple[int, int], ...]:
        """Tabulate a function from numbers of workers to the batch. Raises ConfigError."""
        self.load(is_class=False)
        try:
            answer = self._ask(Tabulate(most), BOOT_S, Tabulated)
        except PolicyFailed as error:
            raise self._wrong(error) from None
        return answer.table

    def _wrong(self, error: PolicyFailed) -> ConfigError:
        return ConfigError(f"{self._code.option}={self._code.name}: {error}")

    # ------------------------------------------------------------------------------------------------- how it is asked

    def _ask(self, question: Question, patience_s: float, expected: type[A]) -> A:
        deadline = time.monotonic() + patience_s
        answer: Answer
        with self._turn:
            try:
                self._send(encode(question), deadline)
                answer = self._answers.decode(self._receive(deadline))
            except TimeoutError:
                raise PolicyFailed(f"has not answered within {patience_s:g} s") from None
            except msgspec.MsgspecError as error:
                raise PolicyFailed(f"gave an answer that is none: {error}") from None
            except (OSError, ValueError, EOFError):  # ValueError: closed
                raise PolicyFailed("has ended: its process is gone") from None
        if isinstance(answer, Failed):
            raise PolicyFailed(answer.reason.removeprefix("it "))
        if not isinstance(answer, expected):
            raise PolicyFailed("gave an answer to another question")
        return answer

    def _send(self, frame: bytes, deadline: float) -> None:
        left = memoryview(frame)
        while left:
            _wait(self._to, select.POLLOUT, deadline)
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._to, left) :]

    def _receive(self, deadline: float) -> bytes:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
        if length > LONGEST:
            raise PolicyFailed(f"gave an answer of {length} bytes")
        return self._read(length, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        found = b""
        while len(found) < size:
            _wait(self._from, select.POLLIN, deadline)
            part = os.read(self._from, size - len(found))
            if not part:
                raise EOFError
            found += part
        return found


def _wait(descriptor: int, what: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, what)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _checked(decision: Decision) -> Decision:
    """Check a decision: bound the texts and numbers that are kept, and refuse shares by which no batch can be
    divided.
    """
    if not all(math.isfinite(share) and share > 0 for share in decision.shares.values()):
        raise PolicyFailed(f"gave shares that are no positive numbers: {decision.shares}"[:REASON_LENGTH])
    numbers = dict(list(decision.numbers.items())[:MOST_NUMBERS])
    return msgspec.structs.replace(decision, reason=decision.reason[:REASON_LENGTH], numbers=numbers)
