"""Signals that reach `edl run` before it has an event loop.

While Python imports edl, `horovod_edl` holds SIGTERM and SIGHUP back: what they mean is not known before the settings
are. From then until the loop takes over, one of them ends the process at once, as nothing was started yet.

Owns: when they are let through, and the end that follows. Does not own: what is said, and the exit code (the caller),
nor signals that come later (`edl.launch.job_run`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EarlyEnd(NamedTuple):
    code: int
    line: str


@contextlib.contextmanager
def ends_early(end: Callable[[signal.Signals], EarlyEnd]) -> Iterator[None]:
    """End the process at once on a signal, until the loop's own handlers replace these. Call it in the main thread."""

    def act(number: int, _frame: FrameType | None) -> NoReturn:
        code, line = end(signal.Signals(number))
        os.write(2, f"edl: {line}\n".encode())
        os._exit(code)

    heeded = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]  # nohup edl run ...
    before = {one: signal.signal(one, act) for one in heeded}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
