"""horovodrun's driver, a guest of the job's machine: a job without one never comes by here.

Owns: what is done about its counts and about slots that fail. Does not own: when there is a count and what it says
(`edl.core.recount`), nor how a worker is dismissed (`edl.core.sizing`).
"""

from __future__ import annotations

from typing import Final

from edl import facts
from edl.core import recount
from edl.core.draft import Draft
from edl.core.members import Cause, may
from edl.core.sizing import Sizing
from edl.protocol.job import Identity

FREED: Final = "horovodrun has freed its slot"


class HorovodrunDriver:
    """Of one job, during one term."""

    def __init__(self, draft: Draft, sizing: Sizing) -> None:
        self._draft = draft
        self._sizing = sizing
        self._recounts = recount.Recounts()

    def lose(self, worker: Identity) -> None:
        """Its slot may have failed in the driver's eyes."""
        driver = recount.lost(self._draft.record.driver, worker)
        if driver is not self._draft.record.driver:
            self._draft.change(driver=driver)

    def go_on(self) -> None:
        """Let the driver count anew when it wants to, and do what it has decided."""
        draft = self._draft
        if draft.record.driver is None:
            return
        match self._recounts.follows(draft.record, draft.seen, draft.left_at, draft.now):
            case recount.Begin(driver):
                draft.change(driver=driver)
                draft.tell(facts.DriverCounts(number=driver.begun))
            case recount.Counted(driver, size, freed, target):
                draft.change(driver=driver, target=target)
                counted = facts.DriverCounted(number=driver.answered, size=size, freed=freed, given_up=driver.given_up)
                draft.tell(counted)
                able = tuple(worker for worker in freed if may(draft.members[worker], Cause.TOLD_TO_LEAVE))
                self._sizing.dismiss(able, FREED)
            case recount.Dismiss(workers):
                self._sizing.dismiss(workers, FREED)
            case None:
                pass
