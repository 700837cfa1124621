"""The engine of a policy: when the policy is asked, and when its answer is carried out.

A policy of a job's size is given as text:

efficiency=S     each further worker must add more than S of what one does (`edl.policy.efficiency`)
utility=FILE     an earlier end must be worth more than it costs (`edl.policy.efficiency`)
policy=NAME      a user's class: FILE.py:CLASS, or an entry point of the group `edl.policies`; on record, and
                 in messages, policy=sha256:DIGEST of its code, which names nothing that could be run (I18)

Owns: how often a policy is asked, that a job is judged only while no change is under way, that a decision must be
confirmed by a second look, the least time between changes, and the policy that a text means. Does not own: the policy,
the measurements, nor carrying anything out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from edl.errors import ConfigError
from edl.policy import efficiency
from edl.policy.efficiency import Condition, Efficiency, Search, Worth
from edl.policy.policy_job_view import Decision, Policy, View
from edl.policy.stragglers import Straggler, UnevenPaces


class Pacing(msgspec.Struct, frozen=True):
    """The pace of a policy: how often it is asked, and how often a decision must be repeated."""

    every: int = 10  # steps between two looks at the job
    looks: int = 2  # successive looks with the same decision before it is carried out
    cooldown_s: float = 5.0  # least time from one change to the next
    dry_run: bool = False  # decide and report, but change nothing


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision to report, and to carry out if `act`."""

    decision: Decision
    act: bool


class Engine:
    """All inputs come by `look`."""

    def __init__(self, policy: Policy | None, pacing: Pacing, *, only_tell: bool = False) -> None:
        """Report a straggler, which stays, if `only_tell`."""
        self._policy = policy
        self._pacing = pacing
        self._only_tell = only_tell
        self._named = ""  # the straggler that was reported last
        self._looked_at: int | None = None  # step
        self._changed_at: float | None = None  # when the last change was ordered or seen
        self._size = 0
        self._heard: tuple[Decision, int] | None = None  # the last decision, and how often in a row it was made
        self._told: tuple[int, tuple[str, ...], bool] | None = None

    def look(
        self, view: View, straggler: Straggler | UnevenPaces | None = None, *, at_rest: bool = True
    ) -> Ruling | None:
        """Return a ruling to report now, or None. `at_rest` means that no change of size is under way."""
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

    def _decide(self, view: View, straggler: Straggler | UnevenPaces | None) -> Decision | None:
        """Handle a straggler first, because a slow worker spoils all measurements; else ask the policy."""
        if isinstance(straggler, UnevenPaces):
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
        """Report a change each time it is decided, so that a change which is undone shows again; report other decisions
        once.
        """
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


GROUP: Final = "edl.policies"
BATCHES: Final = 100
COOLDOWN_S: Final = 5.0
MOST_WORKERS: Final = 256  # if the job has no limit: the largest size for which a user's function is called


@dataclass(frozen=True, slots=True)
class Choice:
    """The parts of an --autoscale text."""

    kind: str  # "efficiency", "utility" or "policy"
    value: str
    options: dict[str, float]
    dry_run: bool

    @classmethod
    def of(cls, text: str) -> Choice:
        """Parse a text of the right form (`edl.config`). Raises ConfigError for any other."""
        first, *others = text.split(",")
        kind, _, value = first.partition("=")
        try:
            named = dict(other.split("=") for other in others if "=" in other)
            options = {name: float(number) for name, number in named.items()}
        except ValueError:
            raise ConfigError(f"--autoscale {text}: cannot be read") from None
        return cls(kind, value, options, "dry-run" in others)

    @property
    def is_users(self) -> bool:
        """Tell whether a user's code decides, instead of edl's own policies."""
        return self.kind == "policy"

    def naming(self, digest: str) -> str:
        """Return the text with the digest of the user's code in place of its name."""
        options = [f"{name}={number:g}" for name, number in self.options.items()]
        return ",".join([f"policy={digest}", *options, *(["dry-run"] if self.dry_run else [])])

    @property
    def stride(self) -> int:
        return max(1, int(self.options.get("stride", 1)))

    @property
    def batches(self) -> int:
        return max(2, int(self.options.get("batches", BATCHES)))

    def pacing(self, every: int) -> Pacing:
        return Pacing(every=every, cooldown_s=self.options.get("cooldown", COOLDOWN_S), dry_run=self.dry_run)

    def policy(self, file: str) -> Policy:
        """Return one of edl's own policies. `file` is the content of the utility's file. Raises ConfigError."""
        condition: Condition
        match self.kind:
            case "efficiency":
                condition = Efficiency(float(self.value))
            case "utility":
                condition = Worth(efficiency.read(file, self.value))
            case _:
                raise ConfigError(f"--autoscale {self.kind}={self.value}: is none of edl's own policies")
        return Search(condition, self.stride, self.batches)
