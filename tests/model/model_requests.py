"""Make requests to a simulated job: by `edl scale` and its like from outside, and by its own policy.

Owns: asking, and asking again until a leader has answered. Does not own: any decision, nor what must hold
(`tests.model.model_checks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edl.core.job.leader_inputs import Ruled
from edl.protocol.leader_messages import AskBatch, AskCheckpoint, AskPreempt, AskScale
from edl.protocol.record import OVER, WorkerState
from tests.model.model_worker import SESSION_S, SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

REACH_S: Final = 2.4  # within so long a size that was asked for is reached


class SimRequests:
    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._replacements = 0  # that the job's own policy has asked for

    def ask(self, size: int, heard: Callable[[], None] | None = None) -> None:
        """`edl scale`, said again until a leader has answered; and the missing workers are started."""
        said: list[bool] = []

        def hear(taken: bool) -> None:
            said.append(taken)
            if heard is not None:
                heard()

        self._job.call(AskScale(size), hear)
        self._job.after(SESSION_S, self._asked, size, said, heard)

    def _asked(self, size: int, said: list[bool], heard: Callable[[], None] | None) -> None:
        if self._job.durable.state in OVER:
            return
        if not said:
            self._job.calm_at = self._job.now
            self.ask(size, heard)
        elif True in said and self._job.durable.target == size:
            self._job.launcher.start_missing()

    def demand(self, size: int) -> None:
        """Ask for a size, and insist: if nothing else happens from now on, the job comes to have it."""
        others = self._unheard()
        self.ask(size, lambda: others.extend(self._unheard()))
        self._job.note(f"{size} workers are asked for, and nothing else happens")
        for turn in range(1, 8):
            self._job.after(turn * REACH_S / 8, self._insist, self._job.calm_at)
        self._job.after(REACH_S, self._reached, self._job.calm_at, self._replacements, size, others)

    def _insist(self, calm_at: float) -> None:
        if calm_at == self._job.calm_at and self._job.durable.state not in OVER:
            self._job.launcher.start_missing()

    def _reached(self, calm_at: float, replacements: int, size: int, others: list[SimWorker]) -> None:
        """`others`: who came or went, unheard of, before the request was on record. Let in after it, they are welcome
        beyond it; heard to leave after it, they make the job smaller by one.
        """
        nothing_else = (calm_at, replacements) == (self._job.calm_at, self._replacements)
        if nothing_else and not any(worker.admitted for worker in others):
            self._job.checks.reached(size)

    def _unheard(self) -> list[SimWorker]:
        """Return workers under way, and members that were asked to leave without the leader's knowledge."""
        staying = (one.identity.id for one in self._job.durable.members if one.state is not WorkerState.LEAVING)
        known = map(self._job.workers.get, staying)
        return [*self._job.launcher.under_way(), *(worker for worker in known if worker and worker.leaving)]

    def replace_one(self) -> None:
        """The job's own policy wants another worker in the place of one; what starts workers sees it."""
        if self._job.durable.roster:
            self._replacements += 1
            worker = self._job.random.choice(self._job.durable.roster)
            self._job.note(f"{worker} is to be replaced")
            self._job.call(Ruled(self._job.durable.target, (worker,), "too slow", {}, act=True))
            for turn in range(1, 8):
                self._job.after(turn * SESSION_S / 4, self._start_for_the_slow)

    def _start_for_the_slow(self) -> None:
        if self._job.durable.state not in OVER:
            self._job.launcher.start_missing()

    def share_out(self) -> None:
        """The job's own policy wants some to take less of each batch."""
        if self._job.durable.roster:
            shares = {worker: self._job.random.choice((0.3, 0.6, 1.0)) for worker in self._job.durable.roster}
            self._job.note(f"the batch is to be shared out as {shares}")
            self._job.call(Ruled(self._job.durable.target, (), "uneven", {}, act=True, shares=shares))

    def ask_batch(self, samples: int) -> None:
        """`edl batch`, said once: it may come to no leader."""
        if self._job.durable.state not in OVER:
            self._job.note(f"a batch of {samples} is asked for")
            self._job.call(AskBatch(samples))

    def ask_checkpoint(self, request: str) -> None:
        """`edl checkpoint --wait`: asked again until it is known what has come of it."""
        if self._job.durable.state in OVER or self._job.checks.savings.has_answered(request):
            return
        self._job.call(AskCheckpoint(request))
        self._job.after(SESSION_S, self.ask_checkpoint, request)

    def ask_to_go(self, deadline_s: float) -> None:
        """`edl preempt`: asked again until the job is over."""
        if self._job.durable.state in OVER:
            return
        self._job.checks.savings.asked_to_go()
        self._job.call(AskPreempt("its machines are taken away", deadline_s))
        self._job.after(SESSION_S, self.ask_to_go, deadline_s)
