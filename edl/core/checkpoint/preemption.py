"""A job that is to go: it is saved once more, and then it is over, to be gone on with later.

Its workers stop after the step that is saved, and wait there until that is durable. Where the deadline comes first, the
job goes all the same, and what was durable before has to do. A job that has trained nothing that is not durable, and
does not train on by itself, has nothing to be saved.

Owns: the request on record, its deadline, and the job's end by it. Does not own: the checkpoint
(`edl.core.checkpoint.checkpoints`), nor what workers do at the end of a job.
"""

from __future__ import annotations

from typing import Final

from edl import facts
from edl.core.checkpoint.checkpoints import Checkpoints
from edl.core.checkpoint.due_times import is_saved
from edl.core.job.deadlines import END_OF_TIME
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Refuse
from edl.core.job.leader_state import WorkingState
from edl.protocol.checkpoint_record import Preemption
from edl.protocol.leader_messages import AskPreempt
from edl.protocol.record import OVER, JobState, Record

LOOK_S: Final = 0.1


class Preempting:
    """Each leader's deadline begins anew (I12)."""

    def __init__(self, working: WorkingState, checkpoints: Checkpoints, lead_times: LeadTimes) -> None:
        self._working = working
        self._checkpoints = checkpoints
        self._told_s = 2 * lead_times.notice_s  # what they have trained must be known, also if a host is busy
        self._since: float | None = None  # it was asked, as far as this leader knows
        self._until = 0.0

    def ask(self, asked: AskPreempt) -> None:
        """Take the first request; a repetition changes nothing."""
        working, record = self._working, self._working.record
        if record.state in OVER:
            if record.state is not JobState.PREEMPTED:
                working.commands.append(Refuse(working.over()))
        elif not record.job_policy.checkpointing.folder:
            working.commands.append(
                Refuse("the job is not saved, so nothing could go on with it: start it with --checkpoint DIR")
            )
        elif asked.life not in {0, (life := record.job_policy.checkpointing.life)}:
            working.commands.append(Refuse(f"life {asked.life} of the job was to go, and it is in life {life}"))
        elif record.checkpoints.preemption is None:
            working.change(preemption=Preemption(asked.reason, record.checkpoints.saves, asked.deadline_s))
            working.tell(facts.PreemptAsked(reason=asked.reason, deadline_s=asked.deadline_s))

    @property
    def wake_at(self) -> float:
        record = self._working.record
        is_going = record.checkpoints.preemption is not None and record.state not in OVER
        return self._working.now + LOOK_S if is_going else END_OF_TIME

    def is_due(self) -> bool:
        return self._since is not None and (self._working.now >= self._until or self._has_nothing_new())

    def follow(self) -> None:
        """End the job when it is saved, has nothing to save, or is out of time."""
        working, record = self._working, self._working.record
        preemption = record.checkpoints.preemption
        if preemption is None or record.state in OVER:
            return
        if self._since is None:
            self._since, self._until = working.now, working.now + preemption.deadline_s
        if is_saved(record):
            saved = record.checkpoints.saved
            assert saved is not None
            working.end(JobState.PREEMPTED, f"{preemption.reason}; step {saved.step} is saved: {saved.path}")
        elif not record.generation or self._has_nothing_new():
            working.end(JobState.PREEMPTED, f"{preemption.reason}; {_as_before(record)}")
        elif working.now >= self._until:
            working.end(JobState.PREEMPTED, f"{preemption.reason}; {_left(record, preemption)}")

    def _has_nothing_new(self) -> bool:
        """Tell whether no step was made since the newest checkpoint, and members had time to report one."""
        record = self._working.record
        if self._since is None or self._working.now < self._since + self._told_s:
            return False
        before = record.checkpoints.saved.step if record.checkpoints.saved is not None else 0
        stands = self._checkpoints.members_stand is True and self._working.newest()[0] <= before
        return stands and (
            record.checkpoints.saving is None or not record.checkpoints.saving.complete
        )  # that one is of a newer step


def _as_before(record: Record) -> str:
    if record.checkpoints.saved is not None:
        return f"step {record.checkpoints.saved.step} is saved, and it made none since: {record.checkpoints.saved.path}"
    begun = "it had trained nothing" if record.generation else "it had not begun to train"
    return (
        begun
        if record.checkpoints.resumed is None
        else f"{begun} since it was resumed from {record.checkpoints.resumed.path}"
    )


def _left(record: Record, preemption: Preemption) -> str:
    late = f"it could not be saved within {preemption.deadline_s:g} s"
    if record.checkpoints.saved is not None:
        return f"{late}: step {record.checkpoints.saved.step} is the newest that was saved"
    before = record.checkpoints.resumed
    return f"{late}: {'it goes on from where it was resumed' if before is not None else 'nothing of it is saved'}"
