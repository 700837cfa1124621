"""From what a policy wants to what is done: when it is asked, and when its answer is heeded.

Owns: how often a policy is asked, that only a job at rest is judged, that a decision stands the test of a second look,
and that changes keep their distance. Does not own: the policy, the measurements, nor carrying anything out.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from edl.policy.stragglers import Straggler, Uneven
from edl.policy.view import Decision, Policy, View


class Pacing(msgspec.Struct, frozen=True):
    """How often, and how sure."""

    every: int = 10  # steps between two looks
    looks: int = 2  # in a row with the same outcome, before it is heeded
    cooldown_s: float = 5.0  # at least, from one change to the next
    dry_run: bool = False  # decide, tell, and leave all as it is


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be told, and done where `act`."""

    decision: Decision
    act: bool


class Engine:
    """One job's. `look` is the only way in."""

    def __init__(self, policy: Policy | None, pacing: Pacing, *, only_tell: bool = False) -> None:
        """`only_tell`: a straggler is made known, and stays."""
        self._policy = policy
        self._pacing = pacing
        self._only_tell = only_tell
        self._named = ""  # the straggler that was told of last
        self._looked_at: int | None = None  # step
        self._changed_at: float | None = None  # when a change was ordered last, or seen
        self._size = 0
        self._heard: tuple[Decision, int] | None = None  # what was decided in the last looks, and how often in a row
        self._told: tuple[int, tuple[str, ...], bool] | None = None

    def look(self, view: View, straggler: Straggler | Uneven | None = None, *, at_rest: bool = True) -> Ruling | None:
        """What to tell now; None: nothing. `at_rest`: no change of size is under way."""
        if view.size != self._size:
            self._size, self._changed_at, self._heard = view.size, view.now, None
        if not at_rest or not self._is_due(view):
            return None
        self._looked_at = view.step
        decision = self._decide(view, straggler)
        if decision is None:
            self._heard = None
            return None
        same = self._heard is not None and _alike(decision, self._heard[0])
        times = self._heard[1] + 1 if same and self._heard else 1
        self._heard = (decision, times)
        return self._ruling(view, decision) if times >= self._pacing.looks else None

    def _is_due(self, view: View) -> bool:
        if self._looked_at is not None and 0 <= view.step - self._looked_at < self._pacing.every:
            return False
        return self._changed_at is None or view.now - self._changed_at >= self._pacing.cooldown_s

    def _decide(self, view: View, straggler: Straggler | Uneven | None) -> Decision | None:
        """A slow worker spoils all measurements, so it is seen to first."""
        if isinstance(straggler, Uneven):
            numbers = {"pace": round(straggler.pace, 3)}
            return Decision(view.size, straggler.reason, shares=straggler.shares, numbers=numbers)
        known = straggler is not None and self._only_tell and straggler.worker == self._named
        if straggler is not None and view.size > 1 and not known:
            numbers = {"pace": round(straggler.pace, 3)}
            return Decision(view.size, f"{straggler.reason} ({straggler.cause})", (straggler.worker,), numbers)
        decision = self._policy.decide(view) if self._policy is not None else None
        if decision is None:
            return None
        return msgspec.structs.replace(decision, size=view.bounded(decision.size))

    def _ruling(self, view: View, decision: Decision) -> Ruling | None:
        """A change is told each time, so that whatever undoes it is seen; the rest once."""
        changes = decision.size != view.size or bool(decision.replace) or bool(decision.shares)
        act = changes and not self._pacing.dry_run and not (decision.replace and self._only_tell)
        word = (decision.size, decision.replace, changes)
        if not act and (word == self._told or not (changes or decision.numbers)):
            return None
        self._told, self._heard = word, None
        self._named = decision.replace[0] if decision.replace else self._named
        if act:
            self._changed_at = view.now
        return Ruling(decision, act)


def _alike(one: Decision, other: Decision) -> bool:
    return (one.size, one.replace, bool(one.shares)) == (other.size, other.replace, bool(other.shares))
