"""Rulings of the job's own policy, a guest of the job's machine: a job that only people size never comes by here.

Owns: what is done about a ruling: another size, another worker in a slow one's place, other shares of the batch. Does
not own: what the policy decides (`edl.policy`), when one is replaced (`edl.core.replacing`), nor how the size changes
(`edl.core.sizing`).
"""

from __future__ import annotations

from msgspec import UNSET

from edl import facts
from edl.core import replacing, scaling
from edl.core.draft import Draft
from edl.core.inputs import Ruled
from edl.core.recut import lifted
from edl.core.sizing import Sizing
from edl.protocol.job import OVER
from edl.protocol.messages import AskScale


class PolicyRulings:
    """Of one job, during one term. `boot_s`: how long whoever shall replace another is waited for."""

    def __init__(self, draft: Draft, sizing: Sizing, boot_s: float) -> None:
        self._draft = draft
        self._sizing = sizing
        self._boot_s = boot_s
        self._replacing_since: float | None = None

    def rule(self, ruled: Ruled) -> None:
        """What the job's own policy has decided is told in any case; it may be too late to be done."""
        draft, record = self._draft, self._draft.record
        if record.state in OVER:
            return
        change = scaling.answer(AskScale(ruled.size), record)
        begun = replacing.begin(record, ruled.replace[0]) if ruled.replace else None
        able = begun is not None if ruled.replace else isinstance(change, scaling.Change)
        able = able and (not ruled.shares or draft.supply.ledger is not None)
        act = ruled.act and able and record.plan is None
        decided = facts.PolicyDecided(
            size=ruled.size,
            replace=ruled.replace or UNSET,
            reason=ruled.reason,
            act=act,
            shares=ruled.shares or UNSET,
            numbers=ruled.numbers,
        )
        draft.tell(decided)
        draft.change(ruling=ruled.reason)
        if act and begun is not None:
            self._replace(ruled.replace[0], begun)
        elif act and ruled.shares:
            draft.supply.share_out(ruled.shares)
            draft.keep_ledger(shares=ruled.shares, recut=lifted(draft.record))
        elif act and not ruled.replace and isinstance(change, scaling.Change):
            self._sizing.take(AskScale(ruled.size), change, f"the policy wants a size of {ruled.size}")

    def go_on(self) -> None:
        """Whoever shall come has as long as a boot may take. Not kept: a new leader begins to wait anew."""
        draft, under_way = self._draft, self._draft.record.replacing
        if under_way is None:
            self._replacing_since = None
            return
        self._replacing_since = draft.now if self._replacing_since is None else self._replacing_since
        if draft.now - self._replacing_since >= self._boot_s:
            draft.change(target=under_way.size, replacing=None)
            reason = f"no other worker came in the place of {under_way.worker} within {self._boot_s:g} s: it stays"
            draft.tell(facts.PolicyDecided(size=under_way.size, reason=reason, act=False))
            return
        match replacing.follows(draft.record):
            case replacing.Swap():
                draft.change(target=under_way.size)
                self._sizing.dismiss((under_way.worker,), "another one has come in its place")
            case replacing.Over():
                draft.change(target=under_way.size, replacing=None)
            case None:
                pass

    def _replace(self, worker: str, begun: replacing.BeginReplacing) -> None:
        draft, record = self._draft, self._draft.record
        under_way, awaited = replacing.replacing(worker, record), record.arrivals + 1
        draft.change(replacing=under_way, target=begun.target, awaited=awaited)
        draft.spans.asked_at = draft.now
        if begun.leave:
            self._sizing.dismiss((worker,), "another one comes in its place")
