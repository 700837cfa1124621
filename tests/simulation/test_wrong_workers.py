"""Mutants of a worker's machine: each breaks one of its rules, and whole jobs must notice (see `test_checks`).

Not here, as a job in one thread cannot need them, or does not come to them (tried in vain, in 60 jobs and more of each
kind below): that a collective is cut when a member is gone, and for the newest orders alone (collectives of simulated
rings end by themselves); that a ring is cut as it is left only where it is broken; that what a pipeline's thread finds
for a ring that was left sets no weight, and that it is given stand-ins once; that a switch which was missed while no
worker has samples is told (members meet before a switch is announced, so that its word is not that late any more); that
a trainer obeys no order to leave before its step (the step at which it looks says the same).
`tests/unit/core/worker/test_worker_machine.py` and `tests/unit/trainer/test_worker_shell.py` hold these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mutants import LosesTheNewest, Mutant, Patch, Play, ReadsUnevenly, expect_noticed

from edl.core.worker import worker_machine as module
from edl.core.worker.agreement import Beginning
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.model_state import ModelState
from edl.core.worker.next_move import NEVER, Enter, next_move
from edl.core.worker.sample_supply import SampleSupply, UsualSteps
from edl.core.worker.worker_inputs import AwaitOrders, Command, CopyRest, SetWeight, TellDaemon
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import TrainerState
from edl.protocol.data_nouns import DataSpec
from edl.protocol.job_policy import Batching, BatchRule
from edl.protocol.leader_messages import Phase
from tests.model import Moment, Planned, SimFault, SimJob

SEEDS = 60
DATA = DataSpec(total=1200, epochs=1, batch=2)
LEASED = DataSpec(total=900, epochs=1, batch=4)  # all of it is leased when a newcomer comes
SHARED = DataSpec(total=6000, epochs=1, batch=12)


def replace(patch: Patch, name: str, change: Callable[..., Any], of: type = WorkerMachine) -> None:
    """A method of the machine, or of a part of it, by one that is given the right one first."""
    right = getattr(of, name)
    patch.setattr(of, name, lambda self, *given, **how: change(right, self, *given, **how))


def forgets_that_a_copy_broke_off(patch: Patch) -> None:
    def copies(right, self, *given, **how):
        command = right(self, *given, **how)
        self._tainted = False
        return command

    replace(patch, "copy", copies, ModelState)


def copies_only_what_may_differ(patch: Patch) -> None:
    def begins(right, self, entering, beginning, root):
        if entering.assignment.begins_as_planned:
            return right(self, entering, beginning, root)
        return CopyRest(root, entering.assignment.place.rank == root, beginning.unsure), False

    replace(patch, "begin", begins, ModelState)


def takes_the_rest_for_equal_after_a_void_mini_batch(patch: Patch) -> None:
    def begins(right, self, entering, beginning, root):
        if not entering.assignment.begins_as_planned:
            beginning = Beginning(beginning.step, root, beginning.whole, False, beginning.current)
        return right(self, entering, beginning, root)

    replace(patch, "begin", begins, ModelState)


def begins_with_its_own_model(patch: Patch) -> None:
    replace(patch, "_begin_equal", lambda _right, self: [])


def keeps_its_own_step(patch: Patch) -> None:
    def sits(right, self, entering):
        step = self.count.step
        commands = right(self, entering)
        self.count.step = step
        return commands

    replace(patch, "_sit", sits)


def tells_the_leases_of_its_ring_though_they_did_not_hold(patch: Patch) -> None:
    def sits(right, self, entering):
        before, self.supply.leases_of = self.supply.leases_of, entering.assignment.place.generation
        commands = right(self, entering)
        if not self.supply.leases.covers(self.count.step + 1):
            self.supply.leases_of = before
        return commands

    replace(patch, "_sit", sits)


def waits_for_its_share_and_hears_of_no_other_ring(patch: Patch) -> None:
    def looks(right, self):
        orders = self.orders
        if self.state is TrainerState.AWAITING_SHARE and not self.has_share and orders is not None:
            move = next_move(self._where(waiting=True), orders)
            return [] if isinstance(move, Enter) else right(self)
        return right(self)

    replace(patch, "_look", looks)


def waits_for_first_data_for_ever(patch: Patch) -> None:
    replace(patch, "_stand_in", lambda _right, self: [])


def passes_a_mark(patch: Patch) -> None:
    patch.setattr(UsualSteps, "draw_nearer", lambda self, step: None)
    patch.setattr(LeaseBuffer, "holds_at", lambda _self, _step: False)


def tells_no_daemon_how_far_it_has_read(patch: Patch) -> None:
    def heeds(right, self):
        right(self)
        return []

    replace(patch, "heed_mark", heeds, SampleSupply)


def weighs_evenly(patch: Patch) -> None:
    def covers(right, self, step):
        right(self, step)
        return [SetWeight(1, 1 / 3)]

    replace(patch, "cover", covers, SampleSupply)


def weighs_only_once_in_a_ring(patch: Patch) -> None:
    def covers(right, self, step):
        commands = right(self, step)
        self._unusual.even_until = NEVER
        return commands

    replace(patch, "cover", covers, SampleSupply)


def keeps_the_even_weight_of_a_ring_that_begins(patch: Patch) -> None:
    def goes_on(right, self):
        right(self)
        self.unusual.even_until = NEVER
        return []

    replace(patch, "_go_on_with_data", goes_on)


def looks_at_no_orders_while_it_trains(patch: Patch) -> None:
    replace(patch, "_end_batch", lambda right, self, attention: right(self, False))


def takes_no_share_but_where_it_may_follow_orders(patch: Patch) -> None:
    def adopts(right, self, orders, *, comes=False):
        return [] if self.state is TrainerState.TRAINING else right(self, orders, comes=comes)

    replace(patch, "_adopt", adopts)


def goes_by_orders_that_newer_ones_have_overtaken(patch: Patch) -> None:
    patch.setattr(module, "are_newer", lambda _orders, _known: False)


def stays_at_a_mark_that_is_lifted(patch: Patch) -> None:
    def looks(right, self):
        return (
            [AwaitOrders()] if self.state is TrainerState.BETWEEN and self.supply.leases.marked[0] == 0 else right(self)
        )

    replace(patch, "_look", looks)


def takes_each_mini_batch_for_void_after_one_was(patch: Patch) -> None:
    def goes_on(right, self):
        void = self.void
        commands = right(self)
        self.void = void
        return commands

    replace(patch, "_go_on_with_data", goes_on)


def tells_its_daemon_of_no_ring_that_failed(patch: Patch) -> None:
    replace(patch, "_fail", lambda right, self, *given: without_word(right(self, *given)))


def tells_its_daemon_of_no_void_mini_batch(patch: Patch) -> None:
    def ends(right, self, attention):
        commands = right(self, attention)
        return commands if self.void is None else without_word(commands)

    replace(patch, "_end_batch", ends)


def without_word(commands: list[Command]) -> list[Command]:
    return [one for one in commands if not isinstance(one, TellDaemon)]


def has_a_ring_that_failed_on_its_mind_in_the_next_one(patch: Patch) -> None:
    def enters(right, self):
        before = self.status
        told = right(self)
        return self._tell(phase=Phase.BROKEN, generation=before.generation) if before.phase is Phase.BROKEN else told

    replace(patch, "_enters", enters)


def goes_again_to_a_ring_that_failed(patch: Patch) -> None:
    def fails(right, self, *given):
        before = self._failed_generation
        commands = right(self, *given)
        self._failed_generation = before
        return commands

    replace(patch, "_fail", fails)


def gives_up_a_whole_state_for_a_copy_that_broke_off(patch: Patch) -> None:
    def copies(right, self, *given, **how):
        command = right(self, *given, **how)
        self._tainted = not command.is_root
        return command

    replace(patch, "copy", copies, ModelState)


def takes_its_state_for_half_copied_for_ever(patch: Patch) -> None:
    def sits(right, self, *given, **how):
        before = self._tainted
        right(self, *given, **how)
        self._tainted = before

    replace(patch, "sit", sits, ModelState)


def takes_the_newest_share_whichever_ring_it_is_of(patch: Patch) -> None:
    def adopts(_right, self, orders, _generation, _entered_after, step, *, comes=False):
        for share in orders.shares[-1:]:
            self.leases.adopt(share, (orders.term, orders.version), at_work=step + 1)
            self.leases_of = share.generation
        return self.heed_mark()

    replace(patch, "adopt", adopts, SampleSupply)


def goes_on_before_its_share_has_come(patch: Patch) -> None:
    patch.setattr(WorkerMachine, "has_share", property(lambda self: self.generation > 0))


def commits_a_void_mini_batch(patch: Patch) -> None:
    def ends(right, self, attention):
        self.void = None
        return right(self, attention)

    replace(patch, "_end_batch", ends)


def killed(seed: int) -> SimJob:
    """In a step, which some of the others may have applied."""
    job = LosesTheNewest(DATA, seed=seed, workers=4)
    job.plan([Planned(SimFault.KILL, Moment.STEPPING, 8)])
    return job


def growing(seed: int) -> SimJob:
    job = SimJob(DATA, seed=seed, workers=2)
    job.plan([Planned(SimFault.JOIN, 0.05)])
    return job


def leaving(seed: int) -> SimJob:
    job = SimJob(DATA, seed=seed, workers=3)
    job.plan([Planned(SimFault.LEAVE, 0.1)])
    return job


def newcomer(seed: int) -> SimJob:
    """All is leased when it comes, so that leases are cut anew."""
    job = ReadsUnevenly(LEASED, seed=seed, workers=2, lease_s=5.0)
    job.plan([Planned(SimFault.JOIN, 0.05)])
    return job


def one_is_deaf(seed: int) -> SimJob:
    """The word of the newcomer's switch comes late to one of the others, perhaps after the mark."""
    job = ReadsUnevenly(LEASED, seed=seed, workers=2, lease_s=5.0)
    job.plan([Planned(SimFault.JOIN, 0.05), Planned(SimFault.DEAFEN, 0.3 + seed % 20 / 100)])
    return job


def shared_out(seed: int) -> SimJob:
    job = SimJob(SHARED, seed=seed, workers=3, batching=Batching(BatchRule.GLOBAL))
    job.plan([Planned(SimFault.JOIN, 0.1), Planned(SimFault.JOIN, 0.5)])
    job.after(0.8, job.requests.share_out)
    return job


def cut_off(seed: int) -> SimJob:
    """One can be part of no ring any more, and then another dies, so that all need one."""
    job = SimJob(DATA, seed=seed, workers=4)
    job.plan([Planned(SimFault.CUT_OFF, Moment.STEPPING, 5), Planned(SimFault.KILL, Moment.STEPPING, 6)])
    return job


def killed_twice(seed: int) -> SimJob:
    """In a step, and then another as the newest state is copied to those that are behind."""
    job = SimJob(DATA, seed=seed, workers=5)
    job.plan([Planned(SimFault.KILL, Moment.STEPPING, 8), Planned(SimFault.KILL, Moment.FORMING, 2)])
    return job


def sits_and_dies(seed: int) -> SimJob:
    """A member dies in a new ring before the leader knows that it stands."""
    job = SimJob(DATA, seed=seed, workers=3)
    job.plan([Planned(SimFault.KILL, Moment.STEPPING, 8), Planned(SimFault.KILL, Moment.SITTING, 4)])
    return job


def first_ring(seed: int) -> SimJob:
    """A member dies in it before the leader knows that it stands."""
    job = SimJob(DATA, seed=seed, workers=3)
    job.plan([Planned(SimFault.KILL, Moment.SITTING)])
    return job


MUTANTS: dict[Mutant, tuple[Play, str]] = {
    forgets_that_a_copy_broke_off: (killed, "I5"),
    copies_only_what_may_differ: (growing, "I5"),
    takes_the_rest_for_equal_after_a_void_mini_batch: (cut_off, "I5"),
    begins_with_its_own_model: (growing, "I5"),
    keeps_its_own_step: (growing, "I5"),
    tells_the_leases_of_its_ring_though_they_did_not_hold: (killed, "I7"),
    waits_for_its_share_and_hears_of_no_other_ring: (sits_and_dies, "I12"),
    waits_for_first_data_for_ever: (first_ring, "I12"),
    passes_a_mark: (one_is_deaf, "I7"),
    tells_no_daemon_how_far_it_has_read: (newcomer, "I9"),
    weighs_evenly: (newcomer, "I7"),
    weighs_only_once_in_a_ring: (newcomer, "I7"),
    keeps_the_even_weight_of_a_ring_that_begins: (newcomer, "I7"),
    looks_at_no_orders_while_it_trains: (growing, "I12"),
    takes_no_share_but_where_it_may_follow_orders: (growing, "I12"),
    goes_by_orders_that_newer_ones_have_overtaken: (growing, "I12"),
    stays_at_a_mark_that_is_lifted: (shared_out, "I12"),
    takes_each_mini_batch_for_void_after_one_was: (killed, "I12"),
    tells_its_daemon_of_no_ring_that_failed: (cut_off, "I9"),
    tells_its_daemon_of_no_void_mini_batch: (killed, "I9"),
    has_a_ring_that_failed_on_its_mind_in_the_next_one: (killed, "I12"),
    goes_again_to_a_ring_that_failed: (cut_off, "I2"),
    gives_up_a_whole_state_for_a_copy_that_broke_off: (killed_twice, "I5"),
    takes_its_state_for_half_copied_for_ever: (growing, "I5"),
    takes_the_newest_share_whichever_ring_it_is_of: (growing, "I7"),
    goes_on_before_its_share_has_come: (killed, "I7"),
    commits_a_void_mini_batch: (killed, "I5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_of_a_workers_machine_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    play, expected = MUTANTS[mutant]
    expect_noticed(mutant, play, {expected}, SEEDS, monkeypatch)
