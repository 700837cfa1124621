"""How a script comes to its end, and who must hear of it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from edl.errors import NotResumed


class Leaving(SystemExit):
    """Raised by `notify_batch_end()` in a worker that was told to leave; as a SystemExit it ends the script with 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Exit(SystemExit):
    """What `sys.exit()` raises while failures are noted.

    Inside a process nothing tells its exit status before it has ended, as excepthooks do not hear of SystemExit. But
    Python asks the exception that has reached the outermost frame for its `code`, when no frame is left.
    """

    def __init__(self, note: Callable[[str], None], status: object) -> None:
        super().__init__(*(() if status is None else (status,)))
        self._note = note
        self._status = status

    @property
    def code(self) -> Any:
        if sys._getframe().f_back is None and self._status is not None and self._status != 0:
            self._note(f"SystemExit: {self._status}")
        return self._status

    @code.setter
    def code(self, status: object) -> None:
        self._status = status


def note_failures(note: Callable[[str], None]) -> None:
    """Hear of the exception that ends the script; it is shown as ever, or in one line where that says it all.

    Of `sys.exit()` too, where its status is not 0.

    What is not heard of, such as `os._exit(3)` or a crash of Python as it ends, the launcher sees by the exit status.
    """
    hook = sys.excepthook

    def exit_noting(status: object = None, /) -> NoReturn:
        raise Exit(note, status)

    sys.exit = exit_noting

    def noting(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note("interrupted" if kind is KeyboardInterrupt else f"{kind.__name__}: {error}")
        if isinstance(error, NotResumed):
            sys.stderr.write(f"edl: {error}\n")
        else:
            hook(kind, error, trace)

    sys.excepthook = noting


def leave_on_sigterm(leave: Callable[[], object]) -> None:
    """Make the first SIGTERM a graceful leave, unless the script minds the signal itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def handle(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one is not graceful
        # On a thread: the one that was interrupted may hold the very lock that `leave` needs.
        threading.Thread(target=leave, daemon=True, name="edl-leave").start()

    signal.signal(signal.SIGTERM, handle)
