"""How many workers a job is to have, and who goes for that.

Owns: the size asked for (`target`), once the first worker has brought one: by requests, by rulings of the job's own
policy, by a worker put in another's place, by the count of horovodrun's driver. Does not own: which requests are taken
(`edl.core.scaling`), how to replace (`edl.core.replacing`), when to count anew (`edl.core.recount`), nor when the ring
has that size (`edl.core.planning`).
"""

from __future__ import annotations

from msgspec import UNSET

from edl import facts
from edl.core import recount, replacing, scaling
from edl.core.draft import Draft
from edl.core.inputs import Acknowledge, Refuse, Ruled
from edl.core.members import Cause, may
from edl.core.recut import lifted
from edl.protocol.job import OVER, Taken
from edl.protocol.messages import AskScale, AskScaleIn, AskScaleOut, Scaling


class Sizing:
    """Changes of the size. `boot_s`: how long whoever shall replace another is waited for."""

    def __init__(self, draft: Draft, boot_s: float) -> None:
        self._draft = draft
        self._boot_s = boot_s
        self._replacing_since: float | None = None
        self._recounts = recount.Recounts()

    # --------------------------------------------------------------------------------------------- asked and ruled

    def ask(self, asked: Scaling) -> None:
        """Growing is up to whoever starts workers, who sees the target; shrinking is up to us. The request is kept."""
        draft, record = self._draft, self._draft.record
        before = next((taken for taken in record.taken if asked.request and taken.request == asked.request), None)
        if before is not None:
            draft.commands.append(Acknowledge(before.target))
        elif record.state in OVER:
            draft.commands.append(Refuse(draft.over()))
        else:
            change = scaling.answer(asked, record)
            if isinstance(change, scaling.Change):
                self._take(asked, change, _asked_for(asked))
            else:
                draft.commands.append(change)

    def _take(self, asked: Scaling, change: scaling.Change, why: str) -> None:
        draft, before = self._draft, self._draft.record
        if change.target != before.target or change.leavers:
            draft.tell(facts.SizeAsked(size=change.target, before=before.target, leavers=change.leavers))
            draft.spans.asked_at = draft.now
        awaited = scaling.awaited(before, change)
        driver = recount.wished(before.driver)
        draft.change(target=change.target, awaited=awaited, driver=driver, replacing=None)
        if asked.request:
            taken = (*before.taken, Taken(asked.request, change.target))
            draft.change(taken=taken[-scaling.KEPT :])
        draft.commands.append(Acknowledge(change.target))
        self._dismiss(change.leavers, why)

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
            self._take(AskScale(ruled.size), change, f"the policy wants a size of {ruled.size}")

    # ----------------------------------------------------------------------------------------- of their own accord

    def welcome(self, worker: str, *, answering: bool) -> None:
        """A worker has come. Whoever was not asked for is welcome, too; horovodrun's come as they are counted."""
        record = self._draft.record
        present = len(scaling.staying(record))
        if scaling.is_driven(record) or not record.generation or present <= record.target:
            return
        if answering:  # the request that it was started for was taken back meanwhile
            self._dismiss((worker,), "the request that it was started for was taken back")
        else:
            self._draft.change(target=present)

    def settle(self) -> None:
        """Whoever came beyond what was asked for, while the first ring was forming, is welcome."""
        record = self._draft.record
        self._draft.change(target=max(record.target, len(scaling.staying(record))))

    def release(self, worker: str) -> None:
        """A worker leaves of its own accord."""
        self._dismiss((worker,), "it was stopped from outside")
        record = self._draft.record
        if record.generation and not scaling.is_driven(record):  # else another one is waited for in its place
            self._draft.change(target=max(1, record.target - 1))

    # ------------------------------------------------------------------------------------------- what is under way

    def go_on_replacing(self) -> None:
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
                self._dismiss((under_way.worker,), "another one has come in its place")
            case replacing.Over():
                draft.change(target=under_way.size, replacing=None)
            case None:
                pass

    def go_on_counting(self) -> None:
        """Under horovodrun: let its driver count anew when it wants to, and do what it has decided."""
        draft, record = self._draft, self._draft.record
        match self._recounts.follows(record, draft.seen, draft.left_at, draft.now):
            case recount.Begin(driver):
                draft.change(driver=driver)
                draft.tell(facts.DriverCounts(number=driver.begun))
            case recount.Counted(driver, size, freed, target):
                draft.change(driver=driver, target=target)
                counted = facts.DriverCounted(number=driver.answered, size=size, freed=freed, given_up=driver.given_up)
                draft.tell(counted)
                able = tuple(worker for worker in freed if may(draft.members[worker], Cause.TOLD_TO_LEAVE))
                self._dismiss(able, _FREED)
            case recount.Dismiss(workers):
                self._dismiss(workers, _FREED)
            case None:
                pass

    def _replace(self, worker: str, begun: replacing.BeginReplacing) -> None:
        draft, record = self._draft, self._draft.record
        under_way, awaited = replacing.replacing(worker, record), record.arrivals + 1
        draft.change(replacing=under_way, target=begun.target, awaited=awaited)
        draft.spans.asked_at = draft.now
        if begun.leave:
            self._dismiss((worker,), "another one comes in its place")

    def _dismiss(self, leavers: tuple[str, ...], why: str) -> None:
        for worker in leavers:
            self._draft.leaves_as[worker] = why
            self._draft.move(worker, Cause.TOLD_TO_LEAVE)


def _asked_for(asked: Scaling) -> str:
    """Why whoever leaves by that request does."""
    match asked:
        case AskScale(size):
            return f"a size of {size} was asked for"
        case AskScaleOut(workers):
            return f"{workers} more were asked for"
        case AskScaleIn(workers):
            return f"{workers} fewer were asked for" if isinstance(workers, int) else "a request named it"


_FREED = "horovodrun has freed its slot"
