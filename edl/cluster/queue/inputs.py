"""What the scheduler's machine hears, and what it says.

Owns: the forms. Does not own: any rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from edl.cluster.queue.entries import JobEntry, NodeReport, QueueEvent, Submission
from edl.cluster.queue.retries import RetryRules


class ClusterRules(msgspec.Struct, frozen=True):
    """Bounds and times."""

    retries: RetryRules = RetryRules()
    decide_s: float = 1.0  # from one decision to the next at least
    look_s: float = 15.0  # at most, where anything runs
    leave_s: float = 60.0  # for a worker to leave when it is told to; then it is killed
    cancel_s: float = 10.0  # likewise, where the job is over
    save_s: float = 25.0  # for a job to be saved before it goes
    save_slack_s: float = 20.0  # beyond that, for its processes to end
    longest_save_s: float = 3600.0  # for one that is known to take longer than `save_s`
    end_s: float = (
        3600.0  # for workers of a job that is finished to end, as they may write its results; then they leave
    )
    fail_s: float = 60.0  # likewise, of one that has failed
    sick_failures: int = 3  # failures of a node's own, in `sick_s`: then no worker is started there for as long
    sick_s: float = 300.0
    unseen_s: float = 30.0  # time counts for at most so long from one look to the next, where a job holds devices
    settled_s: float = 60.0  # a job is packed onto fewer nodes if it was left as it is for so long
    move_s: float = 180.0  # for a step of a migration; then it ends
    quotas: dict[str, int] = {}  # user -> devices at most
    sees_left: bool = False  # the policy is told how much work is left
    guessed_left: float = 1000.0  # steps, of a job that has not said it


class JobLook(msgspec.Struct, frozen=True):
    """A job as its own leader shows it; `state` empty: no worker of this life has joined it."""

    state: str = ""
    reason: str = ""
    failed_by: str = ""
    size: int = 0  # workers that train
    step: int = 0  # of this life
    batch: int = 0
    grows: bool = False  # its batch grows with its workers: each takes as many samples at any size
    step_s: float = 0.0  # of the present size; 0: not measured yet
    save_s: float = 0.0  # for so long it has taken to be saved; 0: not known
    left: float | None = None  # steps that are left, where its script has said how many there are
    grad_sqr: float | None = None  # the squared norm of the true gradient, where its script measures its noise
    grad_var: float | None = None  # likewise, the variance of the gradient of one sample

    @property
    def over(self) -> bool:
        """Its workers are about to end, those that come to it too."""
        return self.state in {"finished", "failed", "preempted"}


# ------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Submitted:
    asked: Submission
    environ: str = ""  # the file that has its owner's variables


@dataclass(frozen=True, slots=True)
class CancelAsked:
    job: str


@dataclass(frozen=True, slots=True)
class SizeWanted:
    """Its owner wants so many workers for it; 0: as it was submitted."""

    job: str
    np: int


@dataclass(frozen=True, slots=True)
class NodeReported:
    """Its agent is there, and this is all that it knows."""

    report: NodeReport


@dataclass(frozen=True, slots=True)
class NodeWent:
    """Its agent is away. Its workers may run on: their devices stay theirs."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLeftOut:
    """A scheduler before this one has left it out."""

    node: str
    until: float
    user: str = ""  # on whose jobs' word alone


@dataclass(frozen=True, slots=True)
class LifeReady:
    """Where a life begins is known."""

    job: str
    life: int
    saved_life: int
    path: str
    step: int


@dataclass(frozen=True, slots=True)
class LifeRefused:
    """A life cannot begin."""

    job: str
    life: int
    reason: str
    again: bool


@dataclass(frozen=True, slots=True)
class JobLooked:
    """`final`: begun after the last worker of the life was gone."""

    job: str
    life: int
    look: JobLook
    final: bool = False


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """The cluster is to stop: jobs are saved and go, and none begins. `kill`: they are ended as they are."""

    kill: bool = False


@dataclass(frozen=True, slots=True)
class DrainOver:
    """Jobs may begin again."""


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
    """Find out where that life of the job goes on from, and make room for it; answer with LifeReady or LifeRefused."""

    job: str
    life: int


@dataclass(frozen=True, slots=True)
class SendAway:
    """Have the job's leader save it and end it; a later life of the job goes on, however late this is carried out."""

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
    """Read what the job's leaders have left, now that no worker is there; answer with JobLooked, final."""

    job: str
    life: int


Act = BeginLife | SendAway | ChangeBatch | LookOnce


@dataclass(frozen=True, slots=True)
class Resolved:
    """What came of a batch of inputs. `changed` and `told` are durable before anything of `acts` is done (I9).

    An act may be done twice, by two schedulers one after the other: each is harmless then.
    """

    changed: dict[str, JobEntry] = field(default_factory=dict)
    told: tuple[QueueEvent, ...] = ()
    acts: tuple[Act, ...] = ()
    look_again: float | None = None
