"""Limbs, the processes of one worker: one status of all, what follows from votes, and machines that decide alike."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from edl.core.worker import limb_votes
from edl.core.worker.agreement import Vote
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.limb_votes import ELSEWHERE, OTHER_DATA, Occasion, UpdateVote, combined, row
from edl.core.worker.worker_inputs import (
    AbortRings,
    AdoptRing,
    AwaitOrders,
    BatchEnded,
    BatchVoid,
    EnterRing,
    OrdersHeard,
    OrdersRead,
    RingFormed,
    RingNotPrepared,
    StillWaiting,
    TellDaemon,
)
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import TrainerState
from edl.errors import JobFailed
from edl.protocol.assignment import Assignment, Orders, Place, Share, Verdict
from edl.protocol.data_nouns import DataSpec, Lease, Range, Totals
from edl.protocol.divergence_report import Fingerprint
from edl.protocol.leader_messages import Phase, Void
from edl.protocol.trainer_messages import CopiedPart, TrainerStatus

SPEC = DataSpec(total=80, epochs=1, batch=4)
TRAINS = TrainerStatus(phase=Phase.TRAINING, generation=3, began=10)
BROKEN = TrainerStatus(phase=Phase.BROKEN, generation=3, began=10, reason="the ring failed")
DONE = TrainerStatus(phase=Phase.DONE, generation=3, began=10)

# ------------------------------------------------------------------------------------------------ one status of all


def test_a_worker_of_one_process_has_its_status() -> None:
    assert combined([BROKEN]) is BROKEN


@pytest.mark.parametrize(
    ("limbs", "phase", "generation"),
    [
        ([TRAINS, TRAINS], Phase.TRAINING, 3),
        ([TRAINS, replace(TRAINS, generation=4)], Phase.TRAINING, 3),
        ([TRAINS, BROKEN], Phase.BROKEN, 3),
        ([replace(TRAINS, generation=4), BROKEN], Phase.BROKEN, 3),
        ([TRAINS, replace(BROKEN, generation=4)], Phase.TRAINING, 3),
        ([TrainerStatus(phase=Phase.READY), TrainerStatus(phase=Phase.REHEARSING)], Phase.REHEARSING, 0),
        ([TrainerStatus(phase=Phase.READY), TrainerStatus()], Phase.BOOTING, 0),
        ([TRAINS, DONE], Phase.TRAINING, 3),
        ([DONE, DONE], Phase.DONE, 3),
        ([DONE, replace(DONE, phase=Phase.FAILED)], Phase.FAILED, 3),
        ([TRAINS, replace(DONE, phase=Phase.FAILED)], Phase.FAILED, 3),
    ],
)
def test_the_least_advanced_limb_stands_for_its_worker_in_any_order(limbs, phase, generation) -> None:
    for order in itertools.permutations(limbs):
        found = combined(order)
        assert (found.phase, found.generation) == (phase, generation)


def test_the_limb_that_knows_why_a_ring_has_failed_speaks_for_its_worker() -> None:
    told = [replace(BROKEN, reason=ELSEWHERE), replace(BROKEN, reason="connect: no route to host")]
    assert {combined(order).reason for order in itertools.permutations(told)} == {"connect: no route to host"}


def test_who_fails_after_another_process_has_ended_well_says_so() -> None:
    lost = replace(TRAINS, phase=Phase.FAILED, reason="Connection closed by peer")
    found = combined([lost, TRAINS, DONE])
    assert found.reason == "Connection closed by peer (process 2 of this worker had come to the end of its script)"
    assert combined([lost, TRAINS]).reason == "Connection closed by peer"
    assert not combined([TRAINS, DONE]).reason


def test_a_copy_is_the_workers_once_all_limbs_have_made_theirs() -> None:
    def copied(*limbs: CopiedPart) -> CopiedPart:
        return combined([replace(TRAINS, copied=one) for one in limbs]).copied

    mine, other = CopiedPart(2, ("a", "b"), 1.0), CopiedPart(2, ("c", "d"), 3.0)
    assert copied(mine, other) == CopiedPart(2, ("a", "b", "c", "d"), 3.0)
    assert copied(mine, CopiedPart(1, ("c", "d"))) == copied(CopiedPart(1, ("c", "d")), mine) == CopiedPart(1)
    failed = CopiedPart(2, failure="no space is left")
    assert copied(mine, failed) == copied(failed, other) == failed
    assert copied(CopiedPart(1), failed) == CopiedPart(1), "the other is not through with it"


def test_a_ring_is_prepared_once_it_is_at_all_limbs() -> None:
    def prepared(*limbs: tuple[int, str]) -> tuple[int, str]:
        return combined([replace(TRAINS, prepared=one) for one in limbs]).prepared

    assert prepared((5, ""), (5, "")) == (5, "")
    assert prepared((5, ""), (4, "")) == (4, "")
    assert prepared((5, ""), (5, "it timed out")) == (5, "it timed out")
    assert prepared((4, ""), (5, "it timed out")) == (5, "it timed out")
    assert prepared((4, "it timed out"), (5, "")) == (4, "it timed out")


def test_all_limbs_have_asked_for_data_before_their_worker_has() -> None:
    asks = replace(TRAINS, data=SPEC)
    assert combined([asks, TRAINS]).data is None
    assert combined([asks, asks]).data == SPEC
    differ = combined([asks, replace(TRAINS, data=replace(SPEC, batch=8))])
    assert (differ.phase, differ.reason) == (Phase.FAILED, OTHER_DATA)


def test_a_limb_that_has_begun_its_next_epoch_asks_for_the_same_data() -> None:
    further = combined([replace(TRAINS, data=replace(SPEC, epochs=2)), replace(TRAINS, data=SPEC)])
    assert (further.phase, further.data) == (Phase.TRAINING, SPEC)


def test_what_one_limb_knows_its_worker_does() -> None:
    void = Void(3, "the gradients", 1.0)
    one = replace(TRAINS, leaving=True, void=void, missed=4, figures={"loss": 1.0}, final=(Fingerprint("a", 1),))
    found = combined([TRAINS, one])
    assert (found.leaving, found.void, found.missed, found.figures, found.final) == (True, void, 4, {}, ())


def test_a_mark_is_told_once_all_limbs_know_it_and_as_far_as_any_may_have_read() -> None:
    marks = [replace(TRAINS, marked=one) for one in ((2, 11), (2, 12))]
    assert combined(marks).marked == (2, 12)
    assert combined([marks[0], replace(TRAINS, marked=(1, 30))]).marked == (1, 30)


def test_what_cannot_be_done_by_one_limb_cannot_be_done_by_its_worker() -> None:
    able = replace(TRAINS, prepares=True, booted=True, heard_going=True, sends_state=True)
    found = combined([able, replace(able, prepares=False, booted=False, heard_going=False, sends_state=False)])
    assert not (found.prepares or found.booted or found.heard_going or found.sends_state)


def test_a_state_is_offered_where_all_limbs_give_their_parts() -> None:
    one, other = (replace(TRAINS, offer=offer, state_bytes=size) for offer, size in ((7, 10), (8, 20)))
    assert (combined([one, other]).offer, combined([one, other]).state_bytes) == (7, 20)
    assert combined([one, replace(other, offer=0)]).offer == 0


def test_the_ends_of_all_limbs_are_compared() -> None:
    ends = [replace(DONE, final=(Fingerprint("a", number),)) for number in (1, 2)]
    assert [one.digest for one in combined(ends).final] == [1, 2]


# --------------------------------------------------------------------------------------------------------- votes


def test_a_mini_batch_that_is_void_on_one_limb_is_void_on_all() -> None:
    rows = [row(Occasion.UPDATE, 0, 1), row(Occasion.UPDATE, 1, 0)]
    assert limb_votes.update_of(rows) == UpdateVote(void=True, look=True)
    assert limb_votes.update_of([row(Occasion.UPDATE, 0, 0)] * 2) == UpdateVote(void=False, look=False)


def test_the_newest_orders_are_of_the_latest_term() -> None:
    assert limb_votes.newest_orders([row(Occasion.ORDERS, 2, 9), row(Occasion.ORDERS, 3, 1)]) == (3, 1)
    assert limb_votes.newest_orders([row(Occasion.ORDERS, 2, 9), row(Occasion.ORDERS, 2, 8)]) == (2, 9)


def test_orders_are_looked_at_only_where_all_hold_them() -> None:
    assert limb_votes.all_hold([row(Occasion.HELD, 1)] * 2)
    assert not limb_votes.all_hold([row(Occasion.HELD, 1), row(Occasion.HELD, 0)])


def test_one_ring_that_fails_fails_all() -> None:
    rows = [row(Occasion.ANSWER, 1, *Vote(5, -4, 0, 0)), row(Occasion.ANSWER, 0)]
    assert limb_votes.failed_limb(rows) == 1
    assert limb_votes.failed_limb(rows[:1] * 2) is None


def test_rings_whose_members_differ_have_other_votes() -> None:
    mine, other = Vote(5, -4, 0, 0), Vote(5, 1, 0, 0)
    assert limb_votes.votes_of([row(Occasion.ANSWER, 1, *mine)] * 2) == {mine}
    assert limb_votes.votes_of([row(Occasion.ANSWER, 1, *one) for one in (mine, other)]) == {mine, other}


def test_limbs_at_different_places_of_their_scripts_are_told_so() -> None:
    with pytest.raises(JobFailed, match="process 1 of this worker is at another place"):
        limb_votes.update_of([row(Occasion.UPDATE, 0, 0), row(Occasion.ORDERS, 1, 1)])


# ------------------------------------------------------------------------------------------- machines of one worker


def limb(limbs: int = 2) -> WorkerMachine:
    machine = WorkerMachine(LeaseBuffer(), SimpleNamespace(step=0, usual_until=0))
    machine.introduce(prepares=True, sends_state=False, limbs=limbs)
    return machine


def ring(generation: int, *, after_step: int | None = 0, prepared: bool = False) -> Assignment:
    return Assignment(Place(generation, 0, 2, "w1"), after_step, 0, follows=generation - 1, prepared=prepared)


def told(version: int, assignment: Assignment | None = None, **more: object) -> Orders:
    plain = Orders(1, version, Verdict.STAY, "", 0, 0, 2, boot_alone=False, assignment=assignment, shares=())
    return replace(plain, **more)


def trains(machine: WorkerMachine) -> WorkerMachine:
    machine.handle(OrdersRead(None))
    assert machine.handle(OrdersRead(told(1, ring(1)))) == [EnterRing(ring(1), cut=False)]
    machine.handle(RingFormed())
    assert machine.state is TrainerState.TRAINING
    machine.model.may_differ = False
    return machine


def test_a_limb_obeys_no_orders_before_all_have_looked_at_them() -> None:
    machine = limb()
    assert machine.handle(OrdersRead(None)) == [AwaitOrders()]
    machine.handle(OrdersHeard(told(2, ring(1))))
    assert machine.orders is None
    assert machine.handle(OrdersRead(told(1))) == [AwaitOrders()]
    assert machine.handle(OrdersRead(told(2, ring(1)))) == [EnterRing(ring(1), cut=False)]


def test_a_limb_takes_no_leases_before_all_have_looked_at_them() -> None:
    def after(limbs: int) -> bool:
        machine = trains(limb(limbs))
        share = Share(1, 0, (Lease(1, 0, 10, 4, (Range(0, 0, 40),)),), (Totals(10, 8),), 10, 1, last=False)
        machine.handle(OrdersHeard(told(2, shares=(share,))))
        heard = machine.supply.leases.covers(5)
        machine.handle(StillWaiting(told(2, shares=(share,))))
        assert machine.supply.leases.covers(5)
        return heard

    assert after(limbs=1)
    assert not after(limbs=2)


def marked(number: int, mark: int) -> Orders:
    share = Share(1, 0, (Lease(1, 0, 10, 4, (Range(0, 0, 40),)),), (Totals(10, 8),), 10, 1, last=False)
    return told(1 + number, shares=(replace(share, rebatch=number, mark=mark),))


def test_a_limb_tells_a_mark_that_the_others_have_come_to_though_it_is_in_a_collective() -> None:
    machine = trains(limb())
    machine.handle(StillWaiting(marked(0, 0)))
    machine.count.step = 4
    assert machine.handle(OrdersHeard(marked(1, 5))) == [TellDaemon()]
    assert machine.status.marked == (1, 10)  # what is held by now may be asked for until all limbs look
    machine.handle(BatchEnded(attention=True))
    machine.handle(OrdersRead(marked(1, 5)))
    assert machine.supply.leases.marked == machine.status.marked == (1, 10)


def test_a_limb_that_heard_of_no_mark_keeps_to_the_one_that_another_has_told() -> None:
    machine = trains(limb())
    machine.handle(StillWaiting(marked(0, 0)))
    machine.count.step = 4
    machine.handle(BatchEnded(attention=True))
    machine.handle(OrdersRead(marked(1, 5)))
    assert machine.supply.leases.marked == (1, 10)


def test_a_limb_tells_no_mark_that_is_still_to_come() -> None:
    machine = trains(limb())
    machine.handle(StillWaiting(marked(0, 0)))
    machine.count.step = 4
    assert machine.handle(OrdersHeard(marked(1, 7))) == []
    machine.handle(BatchEnded(attention=True))
    machine.handle(OrdersRead(marked(1, 7)))
    assert machine.supply.leases.marked == machine.status.marked == (1, 7)


def test_a_limb_cuts_a_broken_ring_as_soon_as_it_hears_of_that() -> None:
    machine = trains(limb())
    commands = machine.handle(OrdersHeard(told(2, ring(2, after_step=None))))
    assert AbortRings(range(2)) in commands


def test_no_mini_batch_of_a_limb_is_usual_as_all_vote_in_each() -> None:
    alone, one = trains(limb(1)), trains(limb(2))
    for machine in (alone, one):
        machine.handle(BatchEnded())
    assert alone.count.usual_until > 0
    assert one.count.usual_until == 0


def test_a_limb_whose_ring_was_not_prepared_comes_to_it_to_tell_the_others() -> None:
    alone, one = trains(limb(1)), trains(limb(2))
    for machine in (alone, one):
        machine.count.step = 3
        machine.handle(BatchEnded(attention=True))
    there = ring(2, after_step=4, prepared=True)
    assert AdoptRing(there) not in alone.handle(OrdersRead(told(2, there)))
    assert one.handle(OrdersRead(told(2, there))) == [AdoptRing(there)]


def test_a_limb_that_could_not_form_a_ring_comes_to_it_to_tell_the_others() -> None:
    machine = trains(limb())
    there = ring(2, after_step=None)
    machine.handle(OrdersHeard(told(2, there)))
    machine.handle(RingNotPrepared(2, "it timed out"))
    machine.handle(BatchVoid("the ring failed"))
    machine.handle(BatchEnded())
    assert machine.handle(OrdersRead(told(2, there))) == [AdoptRing(there)]
