"""One attempt to enter a ring: the numbers that its members say to agree on a state, one after the other.

Owns: whose turn it is in that talk. Does not own: the numbers (`edl.core.worker.agreement`), nor what follows from them
(`edl.core.worker.machine`).
"""

from __future__ import annotations

from collections.abc import Generator

from edl.core.worker.agreement import Beginning
from edl.protocol.assignment import Assignment


class Entering:
    """Of one worker."""

    talk: Generator[int, int, Beginning]

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.beginning: Beginning | None = None  # once all have agreed

    def say(self, heard: int | None) -> int | None:
        """The next number, once the highest of those before was heard. None: all have agreed on a beginning.

        Raises RingBroken, JobFailed.
        """
        try:
            return next(self.talk) if heard is None else self.talk.send(heard)
        except StopIteration as over:
            self.beginning = over.value
            return None
