"""Count the steps that a trainer has committed in its page: all that the end of a usual mini-batch does.

`_count.c` is the same in C; `Page.count()` uses it if edl was installed with a compiler. A step leaves the caches cold,
so that a call which takes 1 us in a row takes 8 there, most of it for the memory that Python touches.
"""

from __future__ import annotations

from typing import final


@final
class Count:
    """A counter over two words of a page, which it keeps mapped."""

    __slots__ = ("_attention", "_step", "usual_until")

    def __init__(self, step: memoryview, attention: memoryview, /) -> None:
        """`step` and `attention` are one word each."""
        self._step = step
        self._attention = attention
        self.usual_until = 0  # before this step the end of a mini-batch only needs to be counted

    @property
    def step(self) -> int:
        """Return the newest committed step."""
        return self._step[0]

    @step.setter
    def step(self, step: int) -> None:
        self._step[0] = step

    def advance(self) -> bool:
        """Count a usual mini-batch. Return False, and change nothing, if it is none, or the daemon asks for
        attention.
        """
        step = self._step[0] + 1
        if step >= self.usual_until or step >= self._attention[0]:
            return False
        self._step[0] = step
        return True
