"""A simulated worker: where its trainer is, and what its daemon knows.

Owns: the state of one worker, and what is seen of it. Does not own: what it does next (`edl.testing.simulation`).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from edl.core.agreement import has_state
from edl.core.seat import NEVER, Seat
from edl.protocol.assignment import Assignment, Orders, Share
from edl.protocol.data import DataSpec, Lease, Range
from edl.protocol.job import Identity
from edl.protocol.messages import Observation, Phase
from edl.testing.models import Model, fresh

Batch = tuple[Range, ...]


class Doing(Enum):
    """Where a trainer is in its script and in `edl.trainer`."""

    COMING = "coming"  # inside `init`, before its first seat
    BOOTING = "booting"  # in a ring of one, imports and models
    REHEARSING = "rehearsing"
    CHANGING = "changing"  # `change_ring`: it waits for orders to enter the next one
    ENTERING = "entering"  # it waits in the rendezvous
    AWAITING = "awaiting"  # `_await_share`: the ring stands, its data is not known yet
    TRAINING = "training"
    OVER = "over"


class SimWorker:
    """A trainer and its daemon."""

    __slots__ = (
        "admitted",
        "ahead",
        "alive",
        "assignment",
        "attention",
        "begins_epochs",
        "cut_off",
        "daemon",
        "deaf_until",
        "doing",
        "entered",
        "failed_generation",
        "generation",
        "id",
        "leases_of",
        "leases_told",
        "leaving",
        "mark",
        "met",
        "met_before",
        "missed",
        "model",
        "models_may_differ",
        "opened",
        "orders",
        "phase",
        "presented",
        "read",
        "reason",
        "recut",
        "rehearsed",
        "report_due",
        "sent",
        "share",
        "sits",
        "size",
        "stalled",
        "step",
        "stuck",
        "tainted",
        "voided",
        "wanted",
    )

    def __init__(self, worker: str) -> None:
        self.id = worker
        self.alive = True  # the trainer's process
        self.stalled = False  # it hangs
        self.cut_off = False  # no ring forms with it
        self.doing = Doing.COMING
        self.generation = 0  # of the ring it sits in, or sat in last
        self.failed_generation = 0  # of a newer one that it could not enter
        self.sits = False  # in that ring, and has not left it
        self.entered = 0  # the step that its generation took over after
        self.step = 0  # committed
        self.size = 1  # of that ring
        self.model: Model = fresh(worker)
        self.models_may_differ = False  # nobody has trained, and rank 0's is not everybody's yet
        self.voided = False  # the mini-batch after `step` was void, in the ring that it comes from
        self.tainted = False  # a copy of the state broke off: it must not become anybody's
        self.rehearsed = False
        self.opened = False
        self.wanted = 1  # epochs, where each pass asks for one more
        self.begins_epochs = False  # so it does
        self.ahead = 1  # steps that its pipeline reads ahead
        self.read: dict[int, Batch] = {}  # what its pipeline has read and it has not trained, by step
        self.recut, self.mark = 0, NEVER  # nothing beyond this step is read while that recut is under way
        self.stuck = NEVER  # beyond this step it waits for samples that are behind the mark
        self.assignment: Assignment | None = None  # while it enters
        self.share: Share | None = None
        self.leases_of = 0  # the generation by whose leases `step` was trained
        self.leases_told = 0  # the same when it entered, as its daemon was told
        self.orders: Orders | None = None
        self.attention = NEVER
        # its daemon's
        self.admitted = False  # a leader has taken its registration
        self.daemon = 1  # number of the process; 0: gone with its host
        self.presented = True  # a leader knows that process
        self.phase = Phase.BOOTING
        self.leaving = False
        self.missed = 0  # the newest generation whose switch it has missed
        self.met: tuple[int, ...] = (0,)  # the newest call to a next ring, and whom it has not met there
        self.met_before: tuple[int, ...] = (0,)  # the same of a daemon that died
        self.reason = ""
        self.sent: Observation | None = None
        self.report_due = False
        self.deaf_until = 0.0

    @property
    def has_state(self) -> bool:
        """Its model is that of `step`."""
        return has_state(self.step, tainted=self.tainted)

    @property
    def booted(self) -> bool:
        """It could enter a ring at once."""
        return self.generation > 0 or self.rehearsed

    @property
    def waits(self) -> bool:
        """It could take a seat at once."""
        return self.doing in (Doing.COMING, Doing.CHANGING, Doing.AWAITING)

    @property
    def is_odd(self) -> bool:
        """It hangs, or hears nothing for longer than others wait."""
        return self.stalled or self.deaf_until > 0

    @property
    def is_held(self) -> bool:
        """At the end of a mini-batch, for what follows the mark."""
        return self.doing is Doing.TRAINING and self.mark <= self.step != self.stuck

    def seat(self) -> Seat:
        return Seat(max(self.generation, self.failed_generation), self.step, self.waits)

    def identity(self) -> Identity:
        return Identity(self.id, "host", "127.0.0.1", 1, self.daemon)

    def observation(self, spec: DataSpec | None, step_time_s: float) -> Observation:
        return Observation(
            phase=self.phase,
            generation=max(self.generation, self.failed_generation),
            step=self.step,
            leases_of=self.leases_told,
            step_time_s=step_time_s if self.step > self.entered else 0.0,
            data=self._data(spec) if self.opened and spec is not None else None,
            pause=None,
            leaving=self.leaving,
            reason=self.reason,
            missed=self.missed,
            marked=(self.recut, self.mark) if self.recut else (0, 0),
            booted=self.booted,
            met=self.met,
        )

    def _data(self, spec: DataSpec) -> DataSpec:
        return msgspec.structs.replace(spec, epochs=self.wanted) if self.begins_epochs else spec

    def hear(self) -> bool:
        """Take the share of this generation, if the orders have it. False: they have not."""
        for share in self.orders.shares if self.orders else ():
            if (share.generation, share.after_step) == (self.generation, self.entered):
                self.share, self.leases_of = share, share.generation
                if share.recut != self.recut:
                    self.recut = share.recut
                    # It works on the step after. Now and then it has heard just before it began that one.
                    at_work = self.step + (self.step % 5 > 0)
                    self.mark = max(share.mark, at_work, *self.read) if share.recut else NEVER
                    self.stuck = self.step if self.mark <= self.step else NEVER
                return True
        return False

    def read_on(self) -> None:
        """Its pipeline reads ahead, in the epochs that its script has begun, as far as it may and can."""
        self.read = {step: batch for step, batch in self.read.items() if step > self.step}
        if self.share is None:
            return
        last = min(self.step + self.ahead, self.share.covered_step, self.mark)
        for step in range(max(self.step, *self.read, 0) + 1, last + 1):
            lease = lease_at(self, step)
            if lease is None or (self.begins_epochs and lease.epoch >= self.wanted):
                break
            self.read[step] = lease.between(step - 1, step)


def lease_at(worker: SimWorker, step: int) -> Lease | None:
    """The one that gives `step` its share."""
    leases = worker.share.leases if worker.share else ()
    return next((lease for lease in leases if lease.after_step < step <= lease.until_step), None)


def total_told(worker: SimWorker, step: int) -> int:
    """What `worker` was told that all together train in `step`."""
    totals = worker.share.totals if worker.share else ()
    return next((total.samples for total in totals if step <= total.until_step), 0)
