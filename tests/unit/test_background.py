"""Work beside the training thread, which does not wait for its begin."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from edl import background


@pytest.fixture
def nobody_is_interrupted() -> Iterator[None]:
    """A thread that has the interpreter keeps it until it waits for something."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(30.0)
    yield
    sys.setswitchinterval(before)


def compute() -> int:
    """In Python, for some milliseconds."""
    until = time.monotonic() + 0.02
    return sum(1 for _ in iter(lambda: time.monotonic() < until, False))


@pytest.mark.usefixtures("nobody_is_interrupted")
def test_to_begin_it_takes_no_wait_for_the_thread() -> None:
    found = background.begin(compute)
    assert not found.done()
    assert found.result(20.0) > 0


@pytest.mark.usefixtures("nobody_is_interrupted")
def test_a_thread_of_pythons_library_is_waited_for() -> None:
    """Or this module is needed no more."""
    done = threading.Event()
    threading.Thread(target=lambda: (compute(), done.set()), daemon=True).start()
    assert done.is_set()


def test_what_it_raises_is_for_the_one_that_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        background.begin(lambda: 1 // 0).result(20.0)


def test_what_is_let_go_says_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    said, told = list[str](), threading.Event()

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        said.append(str(unraisable.exc_value))
        told.set()

    def fail(what: str) -> None:
        raise OSError(what)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    background.let_go(fail, "no room")
    assert told.wait(20.0)
    assert said == ["no room"]
