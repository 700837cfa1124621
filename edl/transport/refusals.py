"""Count refusals by reason (I10): a misbehaving peer must not be able to fill a log."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class Refusals:
    """A counter of the process, shared by all parts that refuse messages. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, reason: StrEnum, of: str = "") -> None:
        """Count a refusal. `of`: a server other than the transport's, which has reasons of its own."""
        self._counts[f"{of}_{reason.value}" if of else reason.value] += 1

    def snapshot(self) -> dict[str, int]:
        """Return the number of refusals by reason, without reasons that never occurred."""
        return dict(self._counts)
