"""The thread that forms the next ring, and the training thread that waits for it."""

from __future__ import annotations

import threading
from typing import Any

from edl.protocol.ring import Place
from edl.trainer.preparer import Preparer

PATIENCE_S = 10.0


class Ring:
    """It forms once it may."""

    def __init__(self) -> None:
        self.may_form = threading.Event()
        self.formed: list[int] = []

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        assert self.may_form.wait(PATIENCE_S)
        self.formed.append(place.generation)

    def release(self, generation: int) -> None: ...


class Framework:
    def __init__(self) -> None:
        self.ring = Ring()


def test_a_ring_is_waited_for_though_its_thread_is_only_about_to_begin() -> None:
    """The link's thread is told to begin it, and the training thread comes first."""
    framework: Any = Framework()
    preparer = Preparer(framework, lambda word: None)
    found: list[list[int]] = []

    def wait() -> None:
        preparer.wait_formed(2)
        found.append([*framework.ring.formed])

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "it has not begun"
    preparer.begin(Place(2, 0, 2, "w"), 1.0, all_prepare=True)
    framework.ring.may_form.set()
    waiting.join(PATIENCE_S)
    assert found == [[2]]
