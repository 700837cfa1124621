"""horovodrun's driver, a guest of the job's machine: a job without one never comes by here.

Owns: what is done about its counts and about slots that fail. Does not own: when there is a count and what it says
(`edl.core.driver.horovod_counts`), nor how a worker is dismissed (`edl.core.resize.target_size`).
"""

from __future__ import annotations

from typing import Final

from edl import facts
from edl.core.driver import horovod_counts
from edl.core.job.leader_state import WorkingState
from edl.core.job.member_states import Cause, may
from edl.core.resize.target_size import TargetSize
from edl.protocol.record import Identity

FREED: Final = "horovodrun has freed its slot"


class HorovodrunDriver:
    def __init__(self, working: WorkingState, sizing: TargetSize) -> None:
        self._working = working
        self._sizing = sizing
        self._counts = horovod_counts.CountTimes()

    def lose(self, worker: Identity) -> None:
        """Note that the slot of `worker` may have failed in the driver's eyes."""
        driver = horovod_counts.lost(self._working.record.sizing.driver, worker)
        if driver is not self._working.record.sizing.driver:
            self._working.change(driver=driver)

    def go_on(self) -> None:
        """Let the driver count anew when it wants to, and do what it has decided."""
        working = self._working
        if working.record.sizing.driver is None:
            return
        match self._counts.follows(working.record, working.seen, working.left_at, working.now):
            case horovod_counts.Begin(driver):
                working.change(driver=driver)
                working.tell(facts.DriverCounts(number=driver.begun))
            case horovod_counts.Counted(driver, size, freed, target):
                working.change(driver=driver, target=target)
                counted = facts.DriverCounted(number=driver.answered, size=size, freed=freed, given_up=driver.given_up)
                working.tell(counted)
                able = tuple(worker for worker in freed if may(working.members[worker], Cause.TOLD_TO_LEAVE))
                self._sizing.dismiss(able, FREED)
            case horovod_counts.Dismiss(workers):
                self._sizing.dismiss(workers, FREED)
            case None:
                pass
