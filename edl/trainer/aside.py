"""Work on a thread of its own; what it found, or raised, is for the thread that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Found = TypeVar("Found")


def begin(name: str, act: Callable[[], Found]) -> Future[Found]:
    """`name` of the thread. A process that ends does not wait for it."""
    found = Future[Found]()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            found.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return found


def done(result: Found) -> Future[Found]:
    """No thread is needed."""
    found = Future[Found]()
    found.set_result(result)
    return found
