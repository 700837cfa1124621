"""Track whether a worker's model is that of its step, and what is to be copied until it is.

Newcomers may get the state beside the first steps of their ring, in portions: one of them beside each.
Owns: whose state a worker takes over as its ring begins, whether its own may become another's, which portion goes
beside the step that is being worked on, and how large portions are. Does not own: on which state a ring agrees
(`edl.core.worker.agreement`), over how many steps portions go (`edl.core.switch.generation_switch`), what cannot be
divided, nor sending it (`edl.trainer.state_handoff`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edl.core.worker.agreement import Beginning, Entering, has_state
from edl.core.worker.divergence_finder import is_proven
from edl.core.worker.worker_inputs import CopyRest, CopyState, FetchPortion, FetchState, SendState, StatePortion


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


class ModelState:
    def __init__(self) -> None:
        self.portions = StatePortions()
        self.is_awaited = False  # the worker sits in its ring, and gets its state beside the first steps
        self.may_differ = False  # the first generation has begun, and no model was sent yet
        self.joined = 0  # the step after which it came to a ring that trained; 0: it was there from the beginning
        self.is_new = False  # it came so, and has not been found equal to the others after enough steps yet
        self._tainted = False  # a copy broke off: this state must not become another's

    def is_of(self, step: int) -> bool:
        return has_state(step, tainted=self._tainted)

    def copy(self, root: int, *, is_root: bool, current: bool) -> CopyState:
        """Take over all of the root's state. `current`: this member's is of the same step already, so a copy that
        breaks off does no harm.
        """
        self._tainted = not is_root and not current
        return CopyState(root, is_root, current)

    def begin(
        self, entering: Entering, beginning: Beginning, root: int
    ) -> tuple[CopyState | CopyRest | FetchState | SendState | None, bool]:
        """Return what this member does to begin from the state of rank `root`, and whether it sits in the ring now."""
        is_root = entering.assignment.place.rank == root
        if entering.assignment.begins_as_planned:
            return self._part(entering, beginning, root, is_root)
        if not beginning.whole:
            return CopyRest(root, is_root, beginning.unsure), False
        return self.copy(root, is_root=is_root, current=beginning.current), False

    def _part(
        self, entering: Entering, beginning: Beginning, root: int, is_root: bool
    ) -> tuple[FetchState | SendState | None, bool]:
        """The root sends its state beside the first steps; of the others, only newcomers have to do with that, if any
        come. Survivors have what they need.
        """
        planned = entering.assignment
        first = StatePortion(of=planned.beside)
        if not beginning.current:
            self._tainted = True
            fetches = FetchState(root, beginning.offer, first)
            self.portions = StatePortions(fetches)
            return fetches, False
        if not is_root or not planned.newcomers:
            return None, True
        sends = SendState(planned.newcomers, first)
        self.portions = StatePortions(sends)
        return sends, True

    def sit(self, entering: Entering, beginning: Beginning, *, resumes: bool) -> None:
        """Note that the ring stands, with all members in the state that it begins in."""
        if beginning.whole or beginning.root is None:  # where none has trained, what it has is worth as much as any
            self._tainted = False
        self.is_awaited = self._tainted and beginning.offer > 0
        if entering.is_new:
            self.joined, self.is_new = beginning.step, beginning.step > 0
        self.may_differ = beginning.step == 0 and (entering.assignment.place.size > 1 or resumes)

    def leave(self) -> None:
        """Drop the portions: they end with the ring."""
        self.portions = StatePortions()

    def receive(self) -> bool:
        """Note a copy that has come in a ring that trains: a portion, or all. Return True if a newcomer's state is
        whole now.
        """
        if self.is_awaited and self.portions.follow:
            self.portions.has_come = True
            return False
        awaited, self._tainted, self.is_awaited = self.is_awaited, False, False
        return awaited

    def note_equal(self, step: int) -> None:
        self.is_new = self.is_new and not is_proven(step, self.joined)
