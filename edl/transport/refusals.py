"""What was refused, counted by reason (I10): a misbehaving peer must not be able to fill a log."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class Refusals:
    """One counter per process, shared by all that refuse. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, reason: StrEnum, of: str = "") -> None:
        """`of`: a server that is not the transport's, and has reasons of its own."""
        self._counts[f"{of}_{reason.value}" if of else reason.value] += 1

    def snapshot(self) -> dict[str, int]:
        """Reason to number; reasons that never occurred are left out."""
        return dict(self._counts)
