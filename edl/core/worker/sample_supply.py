"""Track the data of one worker, and the weight of its gradients.

Owns: by the leases of which generation its steps are trained, up to which step it may read, the number of its newest
weight, whether a mini-batch weighs anything, and the next step that needs more than a count: where the weight or the
rates change, or the ring compares states. The daemon's wish for attention stands beside that in the page
(`edl.transport.shared_page`). Does not own: the leases themselves
(`edl.core.worker.lease_buffer`), nor where the trainer is (`edl.core.worker.worker_machine`).
"""

from __future__ import annotations

from typing import Protocol

from edl.core.worker.divergence_finder import next_check
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_inputs import Command, SetWeight, TellDaemon
from edl.protocol.assignment import Orders
from edl.protocol.divergence_report import Checking


class StepCount(Protocol):
    """The count of committed steps. A usual mini-batch is counted there, and the machine does not hear of it."""

    step: int
    usual_until: int  # before this step the end of a mini-batch needs nothing but to be counted


class UsualSteps:
    """Steps of one worker, in its ring, that need more than a count: at the end of others, nothing is asked."""

    def __init__(self) -> None:
        self.even_until = NEVER  # the weight holds up to this step
        self.rates_until = NEVER  # learning rates are multiplied by the same up to this step
        self.checking = Checking()
        self.check_at = NEVER  # the step after which this ring compares its members' states
        self.equal_step = 0  # the newest after which it did, and found them equal
        self.began = 0  # the step after which all members of this ring have their state

    @property
    def step(self) -> int:
        """Return the first step that is to be looked at."""
        return min(self.even_until, self.rates_until, self.check_at)

    def sit(self, checking: Checking, step: int, size: int, *, beside: int = 0) -> None:
        """Begin with a ring of `size` after `step`. Before the first step there is nothing to compare yet; nor, where
        newcomers get their state `beside` so many steps, before the one that follows.
        """
        self.even_until = NEVER
        self.checking, self.equal_step, self.began = checking, 0, step + beside
        self.check_at = self.began if step > 0 and size > 1 else self._next_check(step, size)

    def note_equal(self, step: int, size: int) -> None:
        self.equal_step = step
        self.check_at = self._next_check(step, size)

    def _next_check(self, step: int, size: int) -> int:
        return next_check(step, self.checking.every, size, self.began)

    def draw_nearer(self, step: int) -> None:
        """Look again at the latest after `step`: later steps may have another weight than expected."""
        self.even_until = min(self.even_until, step)


class SampleSupply:
    def __init__(self, leases: LeaseBuffer, unusual: UsualSteps) -> None:
        self.leases = leases
        self._unusual = unusual
        self.alike = False  # this worker is several processes, which adopt the same shares after the same steps
        self.leases_of = 0  # the generation by whose leases the steps so far were trained
        self.marked = (0, 0)  # number of a rebatch, and the step beyond which nothing is handed out while it lasts
        self.weightless = False  # no worker has samples in the mini-batch being worked on
        self._weights = 0  # so many were set

    def adopt(
        self, orders: Orders, generation: int, entered_after: int, step: int, *, comes: bool = False
    ) -> list[Command]:
        """Take the share of this generation, if these orders have it: a pipeline may wait for it.

        `comes`: the worker is about to say by whose leases it begins here. Once it has said that those of before hold,
        it trains by no leases that were only foreseen.
        """
        for share in orders.shares:
            late = share.foreseen and not comes and self.leases_of != generation
            if (share.generation, share.after_step) == (generation, entered_after) and not late:
                if self.alike:
                    self.leases.adopt_alike(share, (orders.term, orders.version), step)
                else:
                    self.leases.adopt(share, (orders.term, orders.version), at_work=step + 1)
                self.leases_of = share.generation
                return self.heed_mark()
        return []

    def promise(self, orders: Orders, generation: int, entered_after: int, step: int) -> list[Command]:
        """Report the mark that these orders will have here once all processes of this worker look at them: others that
        have come to it wait for that, and this one may wait for those in a collective.
        """
        for share in orders.shares:
            if (share.generation, share.after_step) == (generation, entered_after) and self.leases_of == generation:
                mark = self.leases.promised(share, step)
                if mark is None or share.rebatch <= self.marked[0]:
                    return []
                self.marked = (share.rebatch, mark)
                self._unusual.draw_nearer(mark)
                return [TellDaemon()]
        return []

    def heed_mark(self) -> list[Command]:
        """Report a new mark. Steps beyond it may have another weight than expected: the trainer looks there again."""
        marked = self.leases.marked
        if marked == self.marked:
            return []
        self.marked = marked
        if marked[0]:
            self._unusual.draw_nearer(marked[1])
        return [TellDaemon()]

    def cover(self, step: int) -> list[Command]:
        """Set the weight for `step`, whose samples are known: the averaged gradient is to be that of all samples."""
        leases = self.leases
        self.weightless = not leases.samples(step)
        self._unusual.even_until = leases.constant_until(step)
        return [self.weigh(leases.weight(step), stand_ins=not leases.own(step))]

    def weigh(self, weight: float, *, stand_ins: bool = False) -> SetWeight:
        self._weights += 1
        return SetWeight(self._weights, weight, self.weightless, stand_ins)
