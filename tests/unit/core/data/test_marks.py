"""A switch whose newcomers would have no samples waits for one word: how far all pipelines have read."""

from __future__ import annotations

from collections.abc import Iterable

from machine_job import Job

from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import TimePassed, TookOver, Vanished
from edl.core.job.leader_machine import JobMachine
from edl.core.worker.next_move import attention_step
from edl.protocol.data_nouns import DataSpec, Lease, Range
from edl.protocol.leader_messages import Phase
from edl.protocol.record import Plan

DATA = DataSpec(total=6000, epochs=1, batch=10)  # all of it is leased at once: 300 steps of two


class Marked(Job):
    """Two workers are at step 10, and a third is ready."""

    def __init__(self) -> None:
        super().__init__(np=2)
        for worker in ("a", "b"):
            self.join(worker)
        for worker in ("a", "b"):
            self.see(worker, Phase.TRAINING, generation=1, data=DATA)
        for worker in ("a", "b"):
            self.see(worker, Phase.TRAINING, generation=1, step=10, data=DATA)
        self.join("c")
        self.see("c", Phase.READY, data=DATA)

    @property
    def mark(self) -> tuple[int, int]:
        under_way = self.machine.record.sizing.rebatch
        assert under_way is not None
        return under_way.number, under_way.mark

    @property
    def plan(self) -> Plan:
        plan = self.machine.record.plan
        assert plan is not None
        return plan

    def tell(self, worker: str, read: int, **more: object) -> None:
        self.see(worker, Phase.TRAINING, generation=1, step=10, data=DATA, marked=(self.mark[0], read), **more)

    def leased(self, worker: str, step: int) -> int:
        """By the plan."""
        assert self.plan.ledger is not None
        leases = next(one.leases for one in self.plan.ledger.members if one.worker == worker)
        return next(lease.share(step) for lease in leases if lease.after_step < step <= lease.until_step)


def held(leases: Iterable[Lease], after_step: int, until_step: int) -> list[tuple[Range, ...]]:
    """What they give each of these steps."""
    covers = {step: lease for lease in leases for step in range(lease.after_step + 1, lease.until_step + 1)}
    return [covers[step].between(step - 1, step) for step in range(after_step + 1, until_step + 1)]


def test_the_mark_comes_first_and_the_plan_when_all_have_told():
    job = Marked()
    number, mark = job.mark
    assert job.machine.record.plan is None
    assert mark > 10
    share = next(share for share in job.orders("a").shares if share.generation == 1)
    assert (share.rebatch, share.mark) == (number, mark)
    assert attention_step(1, job.orders("a")) == mark  # where it waits, if the plan comes late
    job.tell("a", mark)
    assert job.machine.record.plan is None
    job.tell("b", mark)
    assert (job.plan.roster, job.plan.after_step) == (("a", "b", "c"), mark)
    assert [job.leased(worker, mark + 1) for worker in "abc"] == [10, 10, 10]
    share = next(share for share in job.orders("a").shares if share.generation == 1)
    assert share.rebatch == number, "read beyond, the samples of others would be trained"


def test_what_a_pipeline_has_read_stays_its_own_and_newcomers_have_samples_beside_it():
    job = Marked()
    _, mark = job.mark
    job.tell("a", mark)
    job.tell("b", mark + 7)
    assert job.plan.after_step == mark, "no worker can be beyond the first of the steps told"
    assert [job.leased(worker, mark + 1) for worker in "abc"] == [10, 10, 10]
    assert job.machine.ledger is not None
    assert job.plan.ledger is not None
    for member in job.plan.ledger.members[:2]:
        present = job.machine.ledger.leases(member.worker)
        assert held(member.leases, mark, mark + 7) == held(present, mark, mark + 7)


def test_once_the_ring_stands_the_mark_is_gone():
    job = Marked()
    _, mark = job.mark
    for worker in "ab":
        job.tell(worker, mark)
    for worker in "abc":
        job.see(worker, Phase.TRAINING, generation=2, step=mark, data=DATA, leases_of=2)
    assert (job.machine.record.generation, job.machine.record.sizing.rebatch) == (2, None)
    assert all(share.rebatch == 0 for share in job.orders("a").shares)


def test_a_worker_that_does_not_tell_holds_the_switch_up_for_a_moment_only():
    job = Marked()
    _, mark = job.mark
    job.tell("a", mark)
    job.now += job.machine.lead_times.torn_s
    job.feed(TimePassed())
    assert job.machine.record.sizing.rebatch is None
    assert (job.plan.roster, job.leased("c", (job.plan.after_step or 0) + 1)) == (("a", "b", "c"), 0)


def test_a_switch_that_is_not_wanted_any_more_leaves_no_mark():
    job = Marked()
    job.feed(Vanished("c", "gone"))
    assert (job.machine.record.plan, job.machine.record.sizing.rebatch) == (None, None)


def test_the_mark_of_a_plan_outlives_it_until_a_member_is_known_not_to_have_come_to_its_ring():
    """Others may have been in that ring, and have trained what is leased beyond the mark to this one."""
    job = Marked()
    _, mark = job.mark
    for worker in "ab":
        job.tell(worker, mark)
    job.feed(Vanished("c", "gone"))
    assert (job.plan.generation, job.plan.after_step, job.mark[1]) == (3, mark, mark)
    job.tell("b", mark, missed=3)  # it waits for samples, where no ring can be changed
    job.now += job.machine.lead_times.torn_s
    job.feed(TimePassed())
    assert (job.plan.generation, job.plan.after_step, job.mark[1]) == (4, None, mark)
    job.tell("b", mark, missed=4)
    assert job.machine.record.sizing.rebatch is None


def test_the_mark_holds_as_long_as_its_plan_may_come_into_force_whichever_member_misses_the_switch():
    """Else who misses it gets the samples of before, breaks with them, and takes them along to the planned ring."""
    job = Marked()
    _, mark = job.mark
    for worker in "ab":
        job.tell(worker, mark)
    job.tell("b", mark, missed=2)
    assert (job.plan.generation, job.plan.after_step, job.mark[1]) == (2, mark, mark)
    job.now += job.machine.lead_times.torn_s
    job.feed(TimePassed())
    assert (job.plan.generation, job.plan.after_step, job.mark[1]) == (3, None, mark)
    job.tell("b", mark, missed=3)
    assert job.machine.record.sizing.rebatch is None


def test_who_misses_the_switch_reads_on_by_the_leases_of_a_member_that_sits_in_the_ring_of_the_plan():
    """That one reads by these already, so they are what the next ring goes by."""
    job = Marked()
    _, mark = job.mark
    for worker in "ab":
        job.tell(worker, mark)
    planned = job.plan
    assert planned.ledger is not None
    theirs = {member.worker: member.leases for member in planned.ledger.members}
    job.see("a", Phase.TRAINING, generation=2, step=mark, data=DATA, leases_of=2)
    job.tell("b", mark, missed=2)
    job.now += job.machine.lead_times.torn_s
    job.feed(TimePassed())
    assert (job.plan.generation, job.plan.after_step, job.mark[1]) == (3, None, mark)
    job.tell("b", mark, missed=3)
    assert job.machine.record.sizing.rebatch is None
    share = next(share for share in job.orders("b").shares if share.generation == 1)
    assert held(share.leases, mark, mark + 5) == held(theirs["b"], mark, mark + 5)


def test_no_mark_where_newcomers_have_samples_anyway():
    job = Job(np=2)
    for worker in ("a", "b"):
        job.join(worker)
    for worker in ("a", "b"):
        job.see(worker, Phase.TRAINING, generation=1, step_time_s=1.0, data=DATA)
    job.join("c")
    job.see("c", Phase.READY, data=DATA)
    assert job.machine.record.plan is not None
    assert job.machine.record.sizing.rebatch is None


def test_a_new_leader_goes_on_with_the_mark_of_the_one_before():
    job = Marked()
    number, mark = job.mark
    job.machine = JobMachine(job.machine.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset("abc")))
    job.see("c", Phase.READY, data=DATA)
    assert (job.mark, job.machine.record.plan) == ((number, mark), None)
    for worker in "ab":
        job.tell(worker, mark)
    assert job.leased("c", (job.plan.after_step or 0) + 1) == 10


def broken() -> Marked:
    """The ring of two breaks while a third worker is ready, and none is gone: no leases come back for the newcomer."""
    job = Marked()
    job.see("a", Phase.BROKEN, generation=1, step=10, data=DATA)
    job.now += job.machine.lead_times.loss_s
    job.feed(TimePassed())
    assert (job.plan.roster, job.plan.after_step) == (("a", "b", "c"), None)
    return job


def shares_after(job: Marked, step: int) -> list[int]:
    """What each member has in the step that follows."""
    ledger = job.machine.ledger
    assert ledger is not None
    leases = (lease for worker in job.machine.record.roster for lease in ledger.leases(worker))
    return [lease.share(step + 1) for lease in leases if lease.after_step < step + 1 <= lease.until_step]


def test_where_a_ring_broke_survivors_tell_at_once_and_the_newcomer_has_samples_in_its_first_step():
    job = broken()
    ledger = job.machine.ledger
    assert ledger is not None
    present, number = ledger.leases("a"), job.mark[0]
    share = next(share for share in job.orders("a").shares if share.generation == 1)
    assert (share.rebatch, share.mark) == (number, 10), "it reads no further than it has"
    for worker, read in (("a", 14), ("b", 11), ("c", 0)):
        told = {"marked": (number, read)} if read else {}
        job.see(worker, Phase.TRAINING, generation=2, step=10, leases_of=1, data=DATA, **told)
    assert (job.machine.record.generation, job.machine.record.sizing.rebatch) == (2, None)
    assert shares_after(job, 10) == shares_after(job, 15) == [10, 10, 10]
    assert job.machine.ledger is not None
    assert held(job.machine.ledger.leases("a"), 10, 14) == held(present, 10, 14), "its pipeline has these already"


def test_where_a_survivor_has_not_told_leases_are_cut_in_the_ring_that_follows():
    job = broken()
    for worker in "abc":
        job.see(worker, Phase.TRAINING, generation=2, step=10, leases_of=1, data=DATA)
    assert job.machine.record.generation == 2
    assert shares_after(job, 10) == [10, 10, 0]
    assert job.machine.record.sizing.rebatch is not None


def test_a_survivor_that_waits_for_samples_in_a_broken_ring_is_given_them():
    """It would never find out that its ring is broken."""
    job = broken()
    job.tell("b", 10, missed=2)
    assert job.machine.record.sizing.rebatch is None
