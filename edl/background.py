"""Run a function on a thread of its own without waiting for the thread to start.

`threading.Thread.start` returns only once the new thread runs. The new thread then holds the interpreter lock and may
keep it for five milliseconds, which is too long for a training thread.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Found = TypeVar("Found")


def begin(act: Callable[[], Found]) -> Future[Found]:
    """Run `act` on a new thread; the future has its result or its exception. The process does not wait for the thread
    at exit.
    """
    found = Future[Found]()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            found.set_exception(error)

    _thread.start_new_thread(run, ())
    return found


def done(result: Found) -> Future[Found]:
    """Return a future that has `result` already; no thread is needed."""
    found = Future[Found]()
    found.set_result(result)
    return found


def let_go(act: Callable[..., object], *arguments: object) -> None:
    """Run `act` on a new thread and drop its result; an exception is printed."""
    _thread.start_new_thread(act, arguments)
