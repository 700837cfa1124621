"""Work on a thread of its own, begun without a wait.

`threading.Thread.start` comes back once the new thread runs. That one has the interpreter by then, and may keep it for
five milliseconds: too long for a training thread.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Found = TypeVar("Found")


def begin(act: Callable[[], Found]) -> Future[Found]:
    """What it finds, or raises, is for the thread that waits for it. A process that ends does not."""
    found = Future[Found]()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            found.set_exception(error)

    _thread.start_new_thread(run, ())
    return found


def done(result: Found) -> Future[Found]:
    """No thread is needed."""
    found = Future[Found]()
    found.set_result(result)
    return found


def let_go(act: Callable[..., object], *arguments: object) -> None:
    """What it raises is printed."""
    _thread.start_new_thread(act, arguments)
