"""A job that is to go: it is saved once more, and then it is over, to be gone on with later.

Training goes on until that checkpoint is durable, and what was trained beyond its step is trained again by the next
life. Where the deadline comes first, the job goes all the same, and what was durable before has to do.

Owns: the request on record, its deadline, and the job's end by it. Does not own: the checkpoint
(`edl.core.checkpoint.checkpoints`), nor what workers do at the end of a job.
"""

from __future__ import annotations

from edl import facts
from edl.core.job.inputs import Refuse
from edl.core.job.working_state import WorkingState
from edl.protocol.job import OVER, JobState, Record
from edl.protocol.messages import AskPreempt
from edl.protocol.saving import Preemption


class Preempting:
    """Of one leader. The deadline begins anew with each (I12)."""

    def __init__(self, working: WorkingState) -> None:
        self._working = working
        self._until: float | None = None

    def ask(self, asked: AskPreempt) -> None:
        """The first request counts; the same again changes nothing."""
        working, record = self._working, self._working.record
        if record.state in OVER:
            if record.state is not JobState.PREEMPTED:
                working.commands.append(Refuse(working.over()))
        elif not record.job_policy.checkpointing.folder:
            working.commands.append(
                Refuse("the job is not saved, so nothing could go on with it: start it with --checkpoint DIR")
            )
        elif record.preemption is None:
            working.change(preemption=Preemption(asked.reason, record.saves, asked.deadline_s))
            working.tell(facts.PreemptAsked(reason=asked.reason, deadline_s=asked.deadline_s))

    def is_due(self) -> bool:
        """Time alone may decide something."""
        return self._until is not None and self._working.now >= self._until

    def follow(self) -> None:
        """End the job when it is saved, has nothing to save, or is out of time."""
        working, record = self._working, self._working.record
        preemption = record.preemption
        if preemption is None or record.state in OVER:
            return
        if self._until is None:
            self._until = working.now + preemption.deadline_s
        if is_saved(record):
            saved = record.saved
            assert saved is not None
            working.end(JobState.PREEMPTED, f"{preemption.reason}; step {saved.step} is saved: {saved.path}")
        elif not record.generation:
            working.end(JobState.PREEMPTED, f"{preemption.reason}; it had not begun to train")
        elif working.now >= self._until:
            working.end(JobState.PREEMPTED, f"{preemption.reason}; {_left(record, preemption)}")


def is_saved(record: Record) -> bool:
    """A checkpoint that was begun after the job was asked to go is durable."""
    preemption, saved = record.preemption, record.saved
    return preemption is not None and saved is not None and saved.number > preemption.saves


def _left(record: Record, preemption: Preemption) -> str:
    late = f"it could not be saved within {preemption.deadline_s:g} s"
    if record.saved is not None:
        return f"{late}: step {record.saved.step} is the newest that was saved"
    before = record.resumed
    return f"{late}: {'it goes on from where it was resumed' if before is not None else 'nothing of it is saved'}"
