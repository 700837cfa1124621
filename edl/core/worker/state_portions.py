"""The state that goes to newcomers beside the first steps of a ring, in portions: one of them beside each.

Owns: which portion goes beside the step that is being worked on, whether more are to follow, and how large they are.
Does not own: over how many steps (`edl.core.switch.generation_switch`), what cannot be divided, nor sending it
(`edl.trainer.state_handoff`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edl.core.worker.worker_inputs import FetchPortion, FetchState, SendState, StatePortion


def cut(sizes: Sequence[int], portions: int) -> list[int]:
    """Return where each portion of indivisible pieces begins, so that portions are about equally large."""
    begins, before, total = [0], 0, sum(sizes)
    for number, size in enumerate(sizes):
        if len(begins) < portions and before >= total * len(begins) / portions:
            begins.append(number)
        before += size
    return begins + [len(sizes)] * (portions - len(begins))


class StatePortions:
    """Portions of state that one worker sends or gets in its ring; none if it does neither."""

    def __init__(self, begins: SendState | FetchState | None = None) -> None:
        """`begins`: what it was told to do beside the first step."""
        self._sends = begins if isinstance(begins, SendState) else None
        self._now = None if begins is None else begins.portion
        self.has_come = False  # that of the step being worked on

    @property
    def follow(self) -> bool:
        """Tell whether more portions go beside later steps."""
        return self._now is not None and not self._now.is_last

    def next(self, *, rest: bool = False) -> list[SendState | FetchPortion]:
        """Return the portion that goes beside the step that begins; `rest`: all that is left goes now."""
        if self._now is None or self._now.is_last:
            return []
        first, of = self._now.until, self._now.of
        now = self._now = StatePortion(first, of if rest else first + 1, of)
        self.has_come = False
        return [FetchPortion(now) if self._sends is None else replace(self._sends, portion=now)]
