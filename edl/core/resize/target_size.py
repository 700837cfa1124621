"""Set the size of a job, and choose which workers leave for it.

Owns: the size asked for (`target`), once the first worker has brought one, and how a worker is dismissed. Does not own:
which requests are taken (`edl.core.resize.scale_requests`), what the job's own policy
(`edl.core.resize.policy_decisions`) and horovodrun's driver (`edl.core.driver.horovod_driver`) make of the size, nor
when the ring has it (`edl.core.switch.next_generation`).
"""

from __future__ import annotations

from edl import facts
from edl.core.driver import horovod_counts
from edl.core.job.leader_inputs import NOT_BEGUN, Acknowledge, Refuse
from edl.core.job.leader_state import WorkingState
from edl.core.job.member_states import Cause
from edl.core.resize import scale_requests
from edl.protocol.leader_messages import AskScale, AskScaleIn, AskScaleOut, Scaling
from edl.protocol.record import OVER, Taken


class TargetSize:
    def __init__(self, working: WorkingState) -> None:
        self._working = working

    # ------------------------------------------------------------------------------------------------------- asked for

    def ask(self, asked: Scaling) -> None:
        """The launcher of workers sees the target, and grows the job; the leader shrinks it."""
        working, record = self._working, self._working.record
        before = next(
            (taken for taken in record.sizing.taken if asked.request and taken.request == asked.request), None
        )
        if before is not None:
            working.commands.append(Acknowledge(before.target))
        elif record.state in OVER:
            working.commands.append(Refuse(working.over()))
        elif not record.arrivals:  # the first worker brings the size that the job begins with, and its limits
            working.commands.append(NOT_BEGUN)
        else:
            change = scale_requests.answer(asked, record)
            if isinstance(change, scale_requests.Change):
                self.take(asked, change, _asked_for(asked), scale_requests.lacking(asked, record))
            else:
                working.commands.append(change)

    def take(self, asked: Scaling, change: scale_requests.Change, why: str, lacking: int = 0) -> None:
        """`why` tells people why the leavers leave. `lacking`: workers that the request asks for besides."""
        working, before = self._working, self._working.record
        if change.target != before.target or change.leavers or lacking:
            size = before.target - lacking
            working.tell(facts.SizeAsked(size=change.target, before=size, leavers=change.leavers))
            working.durations.asked_at = working.now
        awaited = scale_requests.awaited(before, change)
        driver = horovod_counts.wished(before.sizing.driver)
        working.change(target=change.target, awaited=awaited, driver=driver, replacing=None)
        if asked.request:
            taken = (*before.sizing.taken, Taken(asked.request, change.target))
            working.change(taken=taken[-scale_requests.KEPT :])
        working.commands.append(Acknowledge(change.target))
        self.dismiss(change.leavers, why)

    # ----------------------------------------------------------------------------------------- of their own accord

    def welcome(self, worker: str, *, answering: bool) -> None:
        """Welcome a worker, also one that was not asked for; horovodrun's come as they are counted."""
        record = self._working.record
        present = len(scale_requests.staying(record))
        if scale_requests.is_driven(record) or present <= record.target:
            return
        if answering:
            self.dismiss((worker,), "a smaller size was asked for before it came")
        elif record.generation:
            self._working.change(target=present)

    def settle(self) -> None:
        """Welcome workers beyond what was asked for, that came while the first ring was forming."""
        record = self._working.record
        self._working.change(target=max(record.target, len(scale_requests.staying(record))))

    def release(self, worker: str) -> None:
        self.dismiss((worker,), "it was stopped from outside")
        record = self._working.record
        if record.migration is not None and worker in record.migration.newcomers:
            return
        if record.generation and not scale_requests.is_driven(record):  # else another one is waited for in its place
            self._working.change(target=max(1, record.target - 1))

    def dismiss(self, leavers: tuple[str, ...], why: str) -> None:
        for worker in leavers:
            self._working.leaves_as[worker] = why
            self._working.move(worker, Cause.TOLD_TO_LEAVE)


def _asked_for(asked: Scaling) -> str:
    match asked:
        case AskScale(size):
            return f"a size of {size} was asked for"
        case AskScaleOut(workers):
            return f"{workers} more were asked for"
        case AskScaleIn(workers):
            return f"{workers} fewer were asked for" if isinstance(workers, int) else "a request named it"
