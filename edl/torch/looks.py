"""Waiting for what can only be asked whether it is over: soon after it is, and with few questions.

Horovod's own `synchronize` asks once a millisecond, and a step may take ten of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.0001
LATE: Final = 0.02  # a question comes as late, at most, as this part of the wait
SURE: Final = 0.8  # of what waits have taken of late: none is over sooner
BLIND_S: Final = 0.02  # the longest wait without a question
SLOWER: Final = 1.25  # a wait is taken for longer than those of late only by and by


class Looks:
    """Of waits that are much alike, one in each step."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._usual_s = 0.0

    def until(self, over: Callable[[], bool]) -> None:
        """Comes back once it is."""
        began = self._clock()
        if not over():
            self._sleep(max(LOOK_S, min(BLIND_S, SURE * self._usual_s)))
            while not over():
                self._sleep(max(LOOK_S, LATE * (self._clock() - began)))
        self._usual_s = min(self._clock() - began, SLOWER * self._usual_s + LOOK_S)
