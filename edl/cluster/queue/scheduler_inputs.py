"""Inputs and outputs of the scheduler's machine.

Owns: the forms. Does not own: any rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from edl.cluster.queue.end_causes import RetryRules
from edl.cluster.queue.queue_entries import JobEntry, NodeReport, QueueEvent, Submission
from edl.protocol.record import FailedBy


class ClusterRules(msgspec.Struct, frozen=True):
    retries: RetryRules = RetryRules()
    decide_s: float = 1.0  # least time from one decision to the next
    look_s: float = 15.0  # longest time between decisions while a job runs
    leave_s: float = 60.0  # for a worker to leave when it is told to; then it is killed
    cancel_s: float = 10.0  # for a worker to leave once its job is over; then it is killed
    save_s: float = 25.0  # for a job to be saved before it is preempted
    save_slack_s: float = 20.0  # beyond the time to save, for its processes to end
    longest_save_s: float = 3600.0  # upper bound for a job that is known to take longer than `save_s`
    end_s: float = (
        3600.0  # for workers of a job that is finished to end, as they may write its results; then they leave
    )
    fail_s: float = 60.0  # likewise, for workers of a job that has failed
    # failures within `sick_s` that a node is to blame for: then no worker is started there for `sick_s`
    sick_failures: int = 3
    sick_s: float = 300.0
    unseen_s: float = 30.0  # while a job holds devices, at most so much time counts between two looks
    settled_s: float = 60.0  # a job is packed onto fewer nodes if it has not changed for so long
    move_s: float = 180.0  # for a step of a migration; then the migration ends
    quotas: dict[str, int] = {}  # user -> devices at most
    sees_left: bool = False  # tell the policy how much work is left
    guessed_left: float = 1000.0  # steps assumed to be left of a job that does not report them


class JobLook(msgspec.Struct, frozen=True):
    """A job as its own leader shows it; `state` empty: no worker of this life has joined."""

    state: str = ""
    reason: str = ""
    failed_by: FailedBy = FailedBy.FAULT
    size: int = 0  # workers that train
    step: int = 0  # of this life
    batch: int = 0
    grows: bool = False  # its batch grows with its workers: each takes as many samples at any size
    step_s: float = 0.0  # duration of a step at the present size; 0: not measured yet
    save_s: float = 0.0  # how long saving the job took; 0: unknown
    left: float | None = None  # steps left, if its script has told how many there are
    grad_sqr: float | None = None  # the squared norm of the true gradient, if its script measures the noise
    grad_var: float | None = None  # likewise, the variance of the gradient of one sample

    @property
    def over(self) -> bool:
        """Tell whether the job's workers are about to end, including newcomers."""
        return self.state in {"finished", "failed", "preempted"}


# ------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Submitted:
    asked: Submission
    environ: str = ""  # the file with its owner's environment variables


@dataclass(frozen=True, slots=True)
class CancelAsked:
    job: str


@dataclass(frozen=True, slots=True)
class SizeWanted:
    """The owner of a job wants `np` workers for it; 0: as it was submitted."""

    job: str
    np: int


@dataclass(frozen=True, slots=True)
class NodeReported:
    """The agent of a node is there and has sent its complete report."""

    report: NodeReport


@dataclass(frozen=True, slots=True)
class NodeWent:
    """The agent of a node is away. Its workers may run on, and their devices stay theirs."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLeftOut:
    """A scheduler before this one has left the node out."""

    node: str
    until: float
    user: str = ""  # the user whose jobs alone have failed there


@dataclass(frozen=True, slots=True)
class LifeReady:
    """The checkpoint from which a life resumes is known."""

    job: str
    life: int
    saved_life: int
    path: str
    step: int


@dataclass(frozen=True, slots=True)
class LifeRefused:
    job: str
    life: int
    reason: str
    again: bool


@dataclass(frozen=True, slots=True)
class JobLooked:
    """The status of a job was read. `final`: after the last worker of the life was gone."""

    job: str
    life: int
    look: JobLook
    final: bool = False


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """The cluster is to stop: jobs are saved and preempted, and none begins. `kill`: jobs are killed without being
    saved.
    """

    kill: bool = False


@dataclass(frozen=True, slots=True)
class DrainOver:
    """The cluster is not to stop any more: jobs may begin again."""


@dataclass(frozen=True, slots=True)
class QueueTick:
    pass


QueueInput = (
    Submitted
    | CancelAsked
    | SizeWanted
    | NodeReported
    | NodeWent
    | NodeLeftOut
    | LifeReady
    | LifeRefused
    | JobLooked
    | DrainAsked
    | DrainOver
    | QueueTick
)

# ------------------------------------------------------------------------------------------------------------ outputs


@dataclass(frozen=True, slots=True)
class BeginLife:
    """Find out which checkpoint that life of the job resumes from, and make room for it; answer with LifeReady or
    LifeRefused.
    """

    job: str
    life: int


@dataclass(frozen=True, slots=True)
class SendAway:
    """Ask the job's leader to save the job and end it, so that a later life can resume, however late this is
    carried out.
    """

    job: str
    saved_life: int  # as in JobEntry
    deadline_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    job: str
    samples: int


@dataclass(frozen=True, slots=True)
class LookOnce:
    """Read the last status that the job's leaders have left, now that no worker is there; answer with JobLooked,
    final.
    """

    job: str
    life: int


Act = BeginLife | SendAway | ChangeBatch | LookOnce


@dataclass(frozen=True, slots=True)
class Resolved:
    """`changed` and `told` are durable before any of `acts` is carried out (I9). An act may be carried out twice, by
    two schedulers one after the other: each is harmless then.
    """

    changed: dict[str, JobEntry] = field(default_factory=dict)
    told: tuple[QueueEvent, ...] = ()
    acts: tuple[Act, ...] = ()
    look_again: float | None = None
