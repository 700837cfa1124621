"""A simulated worker: where its trainer is, and what its daemon knows.

Owns: the state of one worker, and what is seen of it. Does not own: what it does next (`edl.testing.simulation`).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from edl.core.agreement import has_state
from edl.core.seat import NEVER, Seat
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.protocol.assignment import Assignment, Orders, Share
from edl.protocol.data import DataSpec, Range
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
        "cut_off",
        "daemon",
        "deaf_until",
        "doing",
        "entered",
        "even_until",
        "failed_generation",
        "generation",
        "id",
        "leases",
        "leases_of",
        "leases_told",
        "leaving",
        "marked",
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
        "rehearsed",
        "report_due",
        "sent",
        "sits",
        "size",
        "stalled",
        "step",
        "stuck",
        "tainted",
        "taken",
        "voided",
        "wanted",
        "weight",
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
        self.wanted = 1  # epochs; by its first pass, where each asks for one more
        self.ahead = 1  # steps that its pipeline reads ahead
        self.read: dict[int, Batch] = {}  # what its pipeline has read and it has not trained, by step
        self.leases = LeaseBuffer()
        self.taken: tuple[Share, tuple[int, int]] | None = None  # the newest share that one of its threads has seen
        self.marked = (0, 0)  # as its daemon was told: the recut under way, and its mark
        self.stuck = NEVER  # beyond this step it waits for samples that are behind the mark
        self.weight, self.even_until = 0.0, 0  # of its samples among all workers', up to this step
        self.assignment: Assignment | None = None  # while it enters
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
        return self.doing is Doing.TRAINING and self.leases.holds_at(self.step) and self.step != self.stuck

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
            data=msgspec.structs.replace(spec, epochs=self.wanted) if self.opened and spec is not None else None,
            pause=None,
            leaving=self.leaving,
            reason=self.reason,
            missed=self.missed,
            marked=self.marked,
            booted=self.booted,
            met=self.met,
        )

    def want(self, epochs: int) -> None:
        """Its script asks for so many."""
        self.wanted = epochs
        self.leases.want(epochs)

    def hear(self) -> bool:
        """Take the share of this generation, if the orders have it. False: they have not."""
        orders = self.orders
        for share in orders.shares if orders else ():
            if orders and (share.generation, share.after_step) == (self.generation, self.entered):
                # It works on the step after. Now and then it has heard just before it began that one.
                self.leases.adopt(share, (orders.term, orders.version), at_work=self.step + (self.step % 5 > 0))
                if self.taken is not None:  # by another of its threads, which has looked earlier, and comes later
                    self.leases.adopt(*self.taken)
                self.taken, self.leases_of = (share, (orders.term, orders.version)), share.generation
                self._heed_mark()
                return True
        return False

    def _heed_mark(self) -> None:
        if self.marked != self.leases.marked:
            self.marked = self.leases.marked
            self.stuck = self.step if self.leases.holds_at(self.step) else NEVER
            if self.marked[0]:
                self.even_until = min(self.even_until, self.marked[1])

    def read_on(self) -> None:
        """Its pipeline reads ahead, in the epochs that its script has begun, as far as it may and can."""
        self.leases.forget_before(self.step)
        self.read = {step: batch for step, batch in self.read.items() if step > self.step}
        for step in range(max(self.step, *self.read, 0) + 1, self.step + self.ahead + 1):
            lease = self.leases.wanted_at(step)
            if lease is None or lease.epoch >= self.wanted or not self.leases.hand_out(lease, step):
                break
            self.read[step] = lease.between(step - 1, step)

    def weigh(self, step: int) -> None:
        """Before `step` is reduced, unless the weight of the one before holds."""
        if step > self.even_until:
            self.weight, self.even_until = self.leases.weight(step), self.leases.constant_until(step)
