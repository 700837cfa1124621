"""Decide how a job ends, finished or failed, once no member of its ring trains any more.

Owns: the verdict, how long the others have for their own ends where it is clear already, and finding scripts that do
not do the same in the first mini-batch. Does not own: what a worker's end makes of that worker
(`edl.core.job.leader_machine`), nor what follows where scripts differ in a later step (`edl.core.job.deadlines`).

All of the last ring must have come to the end of their scripts. A lost worker is made up for by a ring that stands
without it: the others train on, and one of them does what it would have done at the end. After the last step there is
no such ring. Nothing makes up for what the lost one was about, its last checkpoint perhaps: then the job has failed.
So it has where the scripts have ended in states that differ, by what each worker tells of its own (I15), unless only
newcomers do.

Before the first step a wait may take as long as a boot: one worker compiles, or fetches the data for all. But where all
members wait, not for the same, and nothing moves, none of them boots any more. No worker has trained well by its script
then, and another life of the job would come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from edl.core.job.leader_state import WorkingState
from edl.core.job.observations import Observations
from edl.core.worker.divergence_finder import at_end, ended_in, named, outcome
from edl.protocol.record import JobState, Record, WorkerState

REMEDY = "all workers must call the same, also where a script goes by its rank"


def disagreement(record: Record, seen: Observations) -> str:
    """Say for people what each member of the first ring waits for, where that can never come; empty: it may."""
    generation, roster = record.generation, record.roster
    if len(roster) < 2 or any(seen.observation(one) is None for one in roster):
        return ""
    waits = {one: seen.awaits(one, generation) for one in roster}
    awaited = {what for what, _ in waits.values()}
    if len(awaited) < 2 or "" in awaited or not all(settled for _, settled in waits.values()):
        return ""
    if all(seen.step(one) for one in roster):  # each script has done the same as the others at least once
        return ""
    told = "; ".join(
        f"rank {rank} ({one}) waits for {waits[one][0]}, in step {seen.place(one)}" for rank, one in enumerate(roster)
    )
    return f"the workers' scripts do not do the same from the first mini-batch on: {told}. {REMEDY.capitalize()}"


class JobEnd:
    """`others_s` is the time for workers at their last save when another has failed at its own."""

    def __init__(self, working: WorkingState, others_s: float) -> None:
        self._working = working
        self._others_s = others_s
        self._clear_since: float | None = None  # not kept: a new leader begins to wait anew

    @property
    def is_clear(self) -> bool:
        """Tell whether the job is bound to fail, while the other members still come to their ends."""
        return bool(self._working.record.ending.unended) and self._working.ledgers.spent

    def is_due(self) -> bool:
        return self._clear_since is not None

    def note(self, worker: str) -> None:
        """Put on record in which state the script of `worker` has ended, so that a later leader can compare it (I9)."""
        working, seen = self._working, self._working.seen.observation(worker)
        if seen is not None and seen.final:
            finals = ended_in(working.record.ending.finals, worker, seen.final, seen.joined)
            working.change(finals=finals, pressing=False)

    def follow(self) -> None:
        """Scripts that end with samples still in their hands broke off by their own will: a number of steps is reached,
        a loss is low enough. Those that ended for want of samples, while a lost worker's are left, did not (I6).
        """
        working, record = self._working, self._working.record
        if self._others_will_tell() and not self._is_up():
            return
        in_ring = (working.state(worker) for worker in record.roster)
        if record.generation == 0 or (any(s not in (None, WorkerState.DONE) for s in in_ring) and not self._is_up()):
            return
        ledger = working.ledgers.ledger
        over = ledger is None or ledger.exhausted
        reason = "" if ledger is None or over else f"all scripts ended at step {ledger.step}, before their data did"
        willing = ledger is not None and ledger.step < ledger.wanted_step and not ledger.stranded
        if not over and not willing:
            working.end(JobState.FAILED, reason)
        elif record.ending.unended:
            working.end(JobState.FAILED, record.ending.unended)
        else:
            differ = at_end(record.ending.finals, record.generation, working.newest()[0])
            if differ is not None:
                working.tell_diverged(differ, outcome(differ, record.job_policy.checking.on_divergence))
            # Unless the job has failed for that.
            working.end(JobState.FINISHED, "; ".join(one for one in (reason, made_alone(record.ending.alone)) if one))

    def _others_will_tell(self) -> bool:
        """A script has ended in the planned ring, and the others are on their way there, or to their own ends in it:
        it is the last ring, not the one on record. They are awaited there as in every planned ring (I12), unless all
        have ended: one may have missed the switch, and ended in the ring of before.
        """
        working, plan = self._working, self._working.record.plan
        if plan is None or not all(map(working.members.__contains__, plan.roster)):
            return False
        if any(working.seen.breaks(worker, plan.generation) for worker in plan.roster):
            return False
        ended = [worker for worker in plan.roster if working.state(worker) is WorkerState.DONE]
        return len(ended) < len(plan.roster) and any(working.seen.sits(worker, plan.generation) for worker in ended)

    def _is_up(self) -> bool:
        """Tell whether the job will have failed whatever comes, and the others have had their time (I12)."""
        working = self._working
        if not self.is_clear:
            self._clear_since = None
            return False
        self._clear_since = working.now if self._clear_since is None else self._clear_since
        return working.now - self._clear_since >= self._others_s


def made_alone(workers: Sequence[str]) -> str:
    """Say, for people, whose state was not compared with the others', and why; nothing where there are none."""
    if not workers:
        return ""
    return (
        f"the state of {named(workers)} was not compared: a member of the ring was lost in the last step, which the "
        "others then made anew"
    )
