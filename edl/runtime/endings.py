"""How a script comes to its end, and who must hear of it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType


class Leaving(SystemExit):
    """Raised by `notify_batch_end()` in a worker that was told to leave; as a SystemExit it ends the script with 0."""

    def __init__(self) -> None:
        super().__init__(0)


def note_failures(note: Callable[[str], None]) -> None:
    """Hear of the exception that ends the script; it is shown as ever."""
    hook = sys.excepthook

    def noting(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note("interrupted" if kind is KeyboardInterrupt else f"{kind.__name__}: {error}")
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
