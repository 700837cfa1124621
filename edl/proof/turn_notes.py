"""Waiting for a turn, and noting the steps of it: of the scripts that `edl.proof.paired_turns` starts."""

from __future__ import annotations

import time
from pathlib import Path


class TurnNotes:
    """Turns of one worker, each of `steps` steps."""

    def __init__(self, folder: Path, kind: str, steps: int) -> None:
        self._folder, self._kind, self._steps = folder, kind, steps
        self._noted: list[float] = []

    def begin(self, number: int) -> None:
        """Note the begin of step `number`; wait before the first one of a turn until the turn has come."""
        turn, step = divmod(number, self._steps)
        self._noted.append(time.perf_counter())
        while not step and not (self._folder / f"turn {turn} {self._kind}").exists():
            time.sleep(0.002)

    def end(self, number: int, rank: int) -> None:
        """Hand in the turn after its last step."""
        turn, step = divmod(number, self._steps)
        if step == self._steps - 1:
            working = self._folder / f"{self._kind} {rank}"
            working.write_text(" ".join(map(str, self._noted)))
            working.rename(self._folder / f"done {turn} {self._kind} {rank}")
            self._noted = []
