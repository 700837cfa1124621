"""Figures of the script's own on their way to the leader: `edl.report(loss=0.3)`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

from edl.errors import UsageError

PERIOD_S: Final = 0.5
MOST: Final = 32  # names


class FigureSender:
    """Send the newest value of each name, twice a second at most, however often the script reports."""

    def __init__(self, send: Callable[[dict[str, float]], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._values: dict[str, float] = {}
        self._sent_at = -math.inf

    def take(self, values: Mapping[str, object]) -> None:
        """Raise UsageError for what is no number."""
        self._values.update({name: _number(name, value) for name, value in values.items()})
        if len(self._values) > MOST:
            raise UsageError(f"edl.report(): {len(self._values)} different names; at most {MOST} are kept")
        if (now := self._clock()) - self._sent_at >= PERIOD_S:
            self._sent_at = now
            self._send(dict(self._values))


def _number(name: str, value: object) -> float:
    # An array or a tensor of one element knows how to become a number.
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"edl.report({name}={value!r}): must be a finite number")
    return number
