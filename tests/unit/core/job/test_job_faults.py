"""The leader's machine in what the simulation found: each a short story that once went wrong."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import meet

from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Refuse, Reported, Tell, TimePassed, TookOver, Vanished
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.job.orders import OrderBook
from edl.core.worker.digest import final
from edl.core.worker.next_move import Enter, Location, Stay, are_newer, given_up, next_move
from edl.events import Kind
from edl.facts import WorkerLost
from edl.protocol.assignment import Orders, Verdict
from edl.protocol.data_nouns import DataSpec
from edl.protocol.divergence_report import Fingerprint
from edl.protocol.leader_messages import AskScale, AskStop, Observation, Phase, Register
from edl.protocol.record import OVER, Identity, JobState, WorkerState
from edl.protocol.tally import LossCause

SPEC = DataSpec(total=40, epochs=1, batch=10)  # two steps of two workers
LONG = DataSpec(total=100_000, epochs=1, batch=10)


class Job:
    """A machine, and workers that do what is said of them."""

    def __init__(self, *workers: str, spec: DataSpec = SPEC, np: int = 0, minimum: int = 1, maximum: int = 0) -> None:
        self.machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0))
        self.spec, self.np, self.minimum, self.maximum, self.now = spec, np or len(workers), minimum, maximum, 0.0
        self.unmet: set[str] = set()  # whose daemons do not come to a call
        for worker in workers:
            self.join(worker)

    def feed(self, happened: object) -> list[object]:
        self.now += 0.01
        return [*self.machine.handle(happened, self.now), *meet(self.machine, self.now, self.unmet)]  # type: ignore[arg-type]

    def join(self, worker: str) -> list[object]:
        return self.feed(Register(Identity(worker, "host", "127.0.0.1", 1, 2), self.np, self.minimum, self.maximum))

    def see(self, worker: str, phase: Phase, generation: int, step: int = 0, **more: object) -> list[object]:
        values = {"leases_of": generation, "data": self.spec, "pause": None, "leaving": False, "reason": ""} | more
        seen = Observation(phase=phase, generation=generation, step=step, step_time_s=0.01, **values)  # type: ignore[arg-type]
        return self.feed(Reported(worker, seen))

    def sit(self, *workers: str, generation: int = 1, step: int = 0) -> None:
        for worker in workers:
            self.see(worker, Phase.TRAINING, generation, step)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.feed(TimePassed())

    def succeed(self, *alive: str) -> None:
        """Another leader goes on from the record."""
        self.machine = JobMachine(self.machine.record, LeadTimes.of(10.0))
        self.feed(TookOver(frozenset(alive)))

    def orders(self, worker: str) -> Orders:
        return OrderBook(self.machine.record, 1).orders(worker)

    def state(self, worker: str) -> WorkerState | None:
        states = {member.identity.id: member.state for member in self.machine.record.members}
        return states.get(worker)

    @property
    def plan(self):
        assert self.machine.record.plan is not None
        return self.machine.record.plan


def test_a_leader_that_comes_after_some_are_done_does_not_wait_for_their_reports() -> None:
    job = Job("w0", "w1")
    job.sit("w0", "w1")
    job.see("w1", Phase.DONE, 1, 2)
    job.succeed("w0")  # the daemon of w1 has ended, as it was told that its end is known
    job.see("w0", Phase.DONE, 1, 2)
    assert (job.machine.record.state, job.machine.record.reason) == (JobState.FINISHED, "")


def test_a_worker_is_lost_as_soon_as_another_one_has_seen_it_die() -> None:
    """Its session lives on for a while. It is told of in each report, and by each of its host."""
    job = Job("w0", "w1", "w2", spec=LONG)
    job.sit("w0", "w1", "w2", step=5)
    told = job.see("w0", Phase.TRAINING, 1, 5, dead=("w1",))
    [lost] = [one.fact for one in told if isinstance(one, Tell) and isinstance(one.fact, WorkerLost)]
    assert (lost.worker, lost.cause, job.plan.roster) == ("w1", LossCause.DIED.value, ("w0", "w2"))
    for worker in ("w2", "w0"):
        told = job.see(worker, Phase.BROKEN, 1, 5, dead=("w1",))
        assert not [one for one in told if isinstance(one, Tell) and isinstance(one.fact, WorkerLost)]
    assert job.plan.roster == ("w0", "w2")


def test_one_that_has_ended_well_is_not_lost_by_its_death() -> None:
    """Its processes end once a leader knows."""
    job = Job("w0", "w1")
    job.sit("w0", "w1")
    job.see("w1", Phase.DONE, 1, 2)
    job.see("w0", Phase.TRAINING, 1, 2, dead=("w1", "a stranger"))
    assert job.state("w1") is WorkerState.DONE
    job.see("w0", Phase.DONE, 1, 2, dead=("w1",))
    assert (job.machine.record.state, job.machine.record.reason) == (JobState.FINISHED, "")


def test_a_job_whose_last_steps_were_trained_by_a_planned_generation_is_finished() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.join("w2")
    job.see("w2", Phase.READY, 0)
    job.see("w2", Phase.DONE, 2, job.plan.after_step or 0)  # the fastest: no other was seen in the new ring yet
    assert job.state("w2") is WorkerState.DONE
    assert job.plan.roster == ("w0", "w1", "w2")


def test_a_job_does_not_begin_anew_once_a_script_has_ended_in_its_first_ring() -> None:
    """The leader was away while it trained on data of its own, and the other one never told that it sat."""
    job = Job("w0", "w1")
    job.see("w1", Phase.DONE, 1, 2, data=None, leases_of=0)
    assert (job.machine.record.generation, job.state("w0")) == (1, WorkerState.TRAINING)
    job.feed(Vanished("w0", "gone"))
    assert job.machine.record.state is JobState.FAILED
    assert "w0 did not come to the end of its script" in job.machine.record.reason


def test_a_first_ring_began_where_the_member_says_that_has_ended_there() -> None:
    """The others have told of one before it alone, which the leader never saw stand."""
    job = Job("w0", "w1", "w2")
    for worker in ("w0", "w1"):
        job.see(worker, Phase.BROKEN, 1, 3, data=None, leases_of=0, booted=True, began=0)
    job.feed(Vanished("w2", "gone"))
    job.join("w3")
    job.see("w3", Phase.READY, 0, data=None, leases_of=0, booted=True)
    job.see("w3", Phase.DONE, job.plan.generation, 5, data=None, leases_of=0, began=3)
    assert (job.machine.record.generation, job.machine.record.began_step) == (2, 3)


def test_one_that_was_to_leave_and_has_trained_to_the_end_of_the_first_ring_has_not_left() -> None:
    """The leader was away meanwhile. It let nobody go, and the job would begin anew."""
    job = Job("w0", "w1")
    job.see("w0", Phase.BOOTING, 0, leaving=True)
    assert job.state("w0") is WorkerState.LEAVING
    job.see("w0", Phase.DONE, 1, 14, leaving=True)
    assert (job.machine.record.generation, job.state("w0")) == (1, WorkerState.DONE)
    job.see("w1", Phase.DONE, 1, 14)
    assert job.state("w1") is WorkerState.DONE
    assert job.machine.record.roster == ("w0", "w1")


def test_the_first_ring_waits_for_all_where_a_script_ended_without_a_step() -> None:
    """Perhaps the others never came to it."""
    job = Job("w0", "w1")
    job.see("w1", Phase.DONE, 1, 0, leases_of=0)
    assert (job.machine.record.generation, job.plan.roster) == (0, ("w0", "w1"))


def test_a_job_is_not_over_while_others_are_at_their_ends_in_a_ring_that_is_not_on_record_yet() -> None:
    job = Job("w0", "w1")
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 5, data=None, leases_of=0)
    job.join("w2")
    job.see("w2", Phase.READY, 0, data=None)
    job.feed(Vanished("w1", "gone"))
    assert job.plan.roster == ("w0", "w2")
    job.see("w0", Phase.DONE, 3, 8, data=None, leases_of=0)
    assert job.machine.record.state not in OVER
    job.see("w2", Phase.TRAINING, 3, 8, data=None, leases_of=0)
    assert job.machine.record.roster == ("w0", "w2")
    job.feed(Vanished("w2", "gone"))
    assert "w2 did not come to the end of its script" in job.machine.record.reason


@pytest.mark.parametrize("broken", [True, False])
def test_a_job_is_over_when_the_others_of_that_ring_cannot_come_to_their_ends(broken: bool) -> None:
    job = Job("w0", "w1")
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 5, data=None, leases_of=0)
    job.join("w2")
    job.see("w2", Phase.READY, 0, data=None)
    job.feed(Vanished("w1", "gone"))
    job.see("w0", Phase.DONE, 3, 8, data=None, leases_of=0)
    if broken:
        job.see("w2", Phase.BROKEN, 3, 7, data=None, leases_of=0)
    else:
        job.feed(Vanished("w2", "gone"))
    assert job.machine.record.state in OVER


@pytest.mark.parametrize("began", [1, 2])
def test_a_script_that_ended_after_a_step_which_the_last_ring_has_made_anew_is_compared_with_no_other(
    began: int,
) -> None:
    """The leader hears of that ring as its script ends there: the ring has told after which step it began."""
    job = Job("w0", "w1", "w2")
    for worker in ("w0", "w1", "w2"):
        job.see(worker, Phase.TRAINING, 1, 1, data=None, leases_of=0, began=0)
    job.feed(Vanished("w2", "gone"))
    job.see("w0", Phase.DONE, 1, 2, data=None, leases_of=0, began=0, final=final(2, [Fingerprint("weight", 5)]))
    job.succeed("w1")
    assert job.plan.roster == ("w1",)
    mine = final(2, [Fingerprint("weight", 6)])
    job.see("w1", Phase.DONE, job.plan.generation, 2, data=None, leases_of=0, began=began, final=mine)
    assert job.machine.record.began_step == began
    assert job.machine.record.state is (JobState.FINISHED if began == 1 else JobState.FAILED)


def test_who_waits_for_the_last_samples_in_a_ring_that_is_broken_gets_a_step_without_any_that_shows_it() -> None:
    """The last samples are held back until all before are trained, and the others cannot train these any more."""
    job = Job("w0", "w1", spec=DataSpec(total=60, epochs=1, batch=10, by_sample=True))
    job.sit("w0", "w1")
    assert job.machine.ledger is not None
    assert job.machine.ledger.covered_step == 2, "of three"
    job.see("w0", Phase.TRAINING, 1, 2)
    job.see("w1", Phase.BROKEN, 1, 1)
    job.wait(10.0)
    assert job.plan.after_step is None
    (share,) = (share for share in job.orders("w0").shares if share.generation == 1)
    assert (share.covered_step, [total.samples for total in share.totals if total.until_step > 2]) == (3, [0])
    job.wait(10.0)
    assert job.machine.ledger.covered_step == 3, "one such step is enough"


def test_newcomers_do_not_fail_a_job_that_all_others_have_finished() -> None:
    job = Job("w0", "w1")
    job.sit("w0", "w1")
    job.join("w2")
    job.see("w0", Phase.DONE, 1, 2)
    job.see("w2", Phase.READY, 0)
    job.see("w1", Phase.TRAINING, 1, 2, leaving=True)
    job.see("w1", Phase.DONE, 1, 2)
    assert (job.machine.record.state, job.machine.record.reason) == (JobState.FINISHED, "")


def test_a_leaver_goes_when_all_others_are_done() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.see("w0", Phase.DONE, 1, 0)
    job.see("w1", Phase.BROKEN, 1, 0, leaving=True)
    assert job.orders("w1").verdict is Verdict.LEAVE


def test_a_newcomer_that_is_told_to_leave_goes_along_with_the_ring_that_counts_on_it() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.join("w2")
    job.see("w2", Phase.READY, 0)
    job.feed(AskScale(2))
    assert job.state("w2") is WorkerState.LEAVING
    assert job.orders("w2").verdict is Verdict.STAY
    after = job.plan.after_step or 0
    job.sit("w0", "w1", "w2", generation=2, step=after)
    assert job.plan.roster == ("w0", "w1")
    assert job.orders("w2").verdict is Verdict.LEAVE


def test_until_the_first_ring_stands_no_worker_boots_alone() -> None:
    job = Job("w0", "w1", "w2", np=2)
    assert job.plan.roster == ("w0", "w1")
    assert not job.orders("w2").boot_alone  # it may be needed, and then must be inside `init` like the others
    job.feed(Vanished("w1", "gone"))
    assert job.plan.roster == ("w0", "w2")


def test_a_member_of_a_first_ring_that_is_dropped_is_no_ready_newcomer() -> None:
    job = Job("w0", "w1")
    job.feed(Vanished("w0", "gone"))
    assert job.machine.record.plan is None
    assert job.state("w1") is WorkerState.JOINING


def test_a_report_that_was_overtaken_is_refused() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1", step=0)
    job.see("w0", Phase.TRAINING, 1, 5)
    (refusal,) = [command for command in job.see("w0", Phase.TRAINING, 1, 4) if isinstance(command, Refuse)]
    assert refusal.stale == "generation"


def test_a_leaver_may_say_twice_that_it_has_left() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.see("w1", Phase.TRAINING, 1, 0, leaving=True)
    job.see("w1", Phase.DONE, 1, 30)
    assert not [command for command in job.see("w1", Phase.DONE, 1, 30) if isinstance(command, Refuse)]


def test_who_was_given_up_hears_why() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.feed(Vanished("w1", "its daemon's session ended"))
    (refusal,) = [command for command in job.see("w1", Phase.TRAINING, 1, 3) if isinstance(command, Refuse)]
    assert (refusal.reason, refusal.retry) == ("its daemon's session ended", True)


def test_a_smaller_size_asked_for_before_the_first_ring_stands_is_kept() -> None:
    job = Job("w0", "w1", "w2")
    job.feed(AskScale(2))
    job.see("w0", Phase.BROKEN, 1, 0, data=None)  # it did not form
    job.wait(job.machine.lead_times.loss_s)
    job.sit(*job.plan.roster, generation=job.plan.generation)
    assert (job.machine.record.target, job.machine.record.roster) == (2, ("w0", "w1"))


def test_an_old_report_to_a_new_leader_plans_nothing_in_the_past() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1", step=0)
    job.sit("w0", "w1", step=50)
    job.join("w2")
    job.see("w2", Phase.READY, 0)  # the plan's ledger, which is kept, knows of step 50
    after = job.plan.after_step or 0
    job.sit("w0", "w1", "w2", generation=2, step=after)
    job.succeed("w0", "w1", "w2")
    job.see("w0", Phase.TRAINING, 2, 3, leaving=True)
    assert job.machine.record.plan is None or (job.plan.after_step or 0) >= after


def test_orders_of_a_stale_leader_are_not_newer() -> None:
    job = Job("w0", "w1")
    old = OrderBook(job.machine.record, 1).orders("w0")
    new = OrderBook(job.machine.record, 2).orders("w0")
    assert are_newer(old, None)
    assert are_newer(new, old)
    assert not are_newer(old, new)
    assert not are_newer(old, old)


def test_samples_that_come_back_after_the_last_short_batch_fail_the_job() -> None:
    """Scripts that cut batches themselves have seen the end: that is no breaking off by their own will."""
    job = Job("w0", "w1", "w2", spec=DataSpec(total=9, epochs=1, batch=1, by_sample=True))
    job.sit("w0", "w1", "w2")
    job.sit("w0", "w1", "w2", step=2)
    job.feed(Vanished("w0", "gone"))
    job.sit("w1", "w2", generation=2, step=2)
    for worker in ("w1", "w2"):
        job.see(worker, Phase.DONE, 2, 3, leases_of=1)
    assert "before their data did" in job.machine.record.reason
    assert job.machine.record.state is JobState.FAILED


def in_a_switch_that_came_late() -> Job:
    """Two train and a third is to join them, in a stream whose next samples are leased with the switch."""
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.join("w2")
    job.see("w2", Phase.READY, 0)
    assert job.plan.after_step is not None
    return job


def test_a_switch_that_all_have_missed_is_put_off_and_the_old_ring_is_supplied() -> None:
    job = in_a_switch_that_came_late()
    plan, step = job.plan, job.plan.after_step or 0
    job.see("w0", Phase.TRAINING, 1, step, missed=plan.generation)
    assert job.plan is plan, "the other one may be in it"
    told = job.see("w1", Phase.TRAINING, 1, step, missed=plan.generation)
    assert [command.fact.kind for command in told if isinstance(command, Tell)] == [Kind.SWITCH_PUT_OFF]
    assert job.machine.record.plan is None
    assert (job.state("w0"), job.state("w2")) == (WorkerState.TRAINING, WorkerState.READY)
    assert job.orders("w0").shares[0].covered_step > step
    job.feed(TimePassed())
    assert job.plan.generation == plan.generation + 1
    assert (job.plan.after_step or 0) > step


def test_a_switch_that_some_have_missed_is_made_at_once_by_all() -> None:
    job = in_a_switch_that_came_late()
    plan, step = job.plan, job.plan.after_step or 0
    job.see("w0", Phase.TRAINING, 1, step, missed=plan.generation)
    job.now += job.machine.lead_times.torn_s
    job.feed(TimePassed())
    assert (job.plan.roster, job.plan.after_step) == (plan.roster, None)


def test_a_switch_that_was_missed_before_is_no_news_about_the_next() -> None:
    job = in_a_switch_that_came_late()
    plan, step = job.plan, job.plan.after_step or 0
    job.see("w0", Phase.TRAINING, 1, step, missed=plan.generation - 1)
    job.see("w1", Phase.TRAINING, 1, step, missed=plan.generation - 1)
    job.now += job.machine.lead_times.torn_s
    job.feed(TimePassed())
    assert job.plan is plan


def test_only_who_need_not_wait_for_a_ring_any_more_is_told_to_give_it_up() -> None:
    job = Job("w0", "w1", "w2", spec=LONG)
    job.sit("w0", "w1", "w2")
    assert not given_up(job.orders("w0"))
    job.see("w2", Phase.TRAINING, 1, leaving=True)
    assert job.plan.after_step, "all go through that step"
    assert not any(given_up(job.orders(worker)) for worker in ("w0", "w2"))
    job.feed(Vanished("w1", "its host is gone"))
    assert job.plan.roster == ("w0",)
    assert given_up(job.orders("w0")) == range(job.plan.generation)
    assert job.plan.generation in given_up(job.orders("w2"))


def in_a_switch() -> Job:
    """Two train, and a third is about to join them."""
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.join("w2")
    job.see("w2", Phase.READY, 0)
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 5, marked=(1, 40) if job.machine.record.sizing.rebatch else (0, 0))
    assert job.plan.roster == ("w0", "w1", "w2")
    return job


@pytest.mark.parametrize("how", ["is gone", "cannot come"])
def test_a_newcomer_that_fails_before_the_switch_step_makes_no_survivor_leave_before_it(how: str) -> None:
    job = in_a_switch()
    before = job.plan
    if how == "is gone":
        job.see("w2", Phase.FAILED, 0, reason="killed")
    else:
        job.see("w2", Phase.BROKEN, before.generation, reason="connect: no route to host", leases_of=0)
        job.wait(1.0)
    assert (job.plan.roster, job.plan.after_step) == (("w0", "w1"), before.after_step)
    orders = job.orders("w0")
    assert next_move(Location(1, (before.after_step or 0) - 1, waiting=False), orders) == Stay()
    assert given_up(orders) == range(2, job.plan.generation), "no member lets go of the ring that trains"
    job.sit("w0", "w1", generation=job.plan.generation, step=before.after_step or 0)
    assert job.machine.record.roster == ("w0", "w1")
    assert job.orders("w0").shares, "what they train next is known once it is known what they have read"


def test_who_waits_for_samples_in_a_ring_whose_plan_came_to_nothing_gets_a_step_without_any() -> None:
    """Else it would never come to the reduction that shows it that its ring is broken."""
    job = in_a_switch()
    plan = job.plan
    job.see("w2", Phase.FAILED, 0, reason="killed")  # before the leader knew that the ring with it stands
    job.feed(Vanished("w1", "gone"))
    (told,) = [share for share in job.orders("w0").shares if share.generation == plan.generation]
    job.see("w0", Phase.TRAINING, plan.generation, told.covered_step, leases_of=plan.generation)
    (more,) = [share for share in job.orders("w0").shares if share.generation == plan.generation]
    assert more.covered_step == told.covered_step + 1
    assert [total.samples for total in more.totals if total.until_step == more.covered_step] == [0]


def test_who_was_left_behind_in_an_old_ring_waits_for_no_step_of_the_next_one() -> None:
    job = in_a_switch()
    orders = job.orders("w0")
    assert orders.assignment is not None
    assert orders.assignment.after_step
    assert orders.assignment.follows == 1
    assert next_move(Location(1, 0, waiting=False), orders) == Stay()
    later = msgspec.structs.replace(orders, assignment=msgspec.structs.replace(orders.assignment, follows=2))
    assert isinstance(next_move(Location(1, 0, waiting=False), later), Enter)


def test_a_newcomer_that_dies_in_the_ring_that_stands_makes_all_leave_at_once() -> None:
    job = in_a_switch()
    job.sit("w0", generation=job.plan.generation, step=job.plan.after_step or 0)
    job.see("w2", Phase.FAILED, 0, reason="killed")
    assert (job.plan.roster, job.plan.after_step) == (("w0", "w1"), None)


def test_a_ring_that_stood_before_any_member_told_is_gone_on_from_with_its_own_leases() -> None:
    job = in_a_switch()
    first, step = job.plan.generation, job.plan.after_step or 0
    job.see("w2", Phase.FAILED, 0, reason="killed")
    assert job.plan.after_step == step
    assert first in given_up(job.orders("w0"))
    assignment = job.orders("w0").assignment
    assert assignment is not None
    assert next_move(Location(first, step + 3, waiting=False), job.orders("w0")) == Enter(assignment)
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, job.machine.record.planned, step + 3, leases_of=first)
    assert (job.machine.record.roster, job.machine.record.began_step) == (("w0", "w1"), step + 3)


def test_a_switch_is_not_put_off_while_a_member_is_in_the_ring_that_was_planned_before() -> None:
    job = in_a_switch()
    first, step = job.plan.generation, job.plan.after_step or 0
    job.see("w2", Phase.FAILED, 0, reason="killed")
    job.see("w0", Phase.TRAINING, 1, step, missed=job.plan.generation)
    job.see("w1", Phase.TRAINING, first, step, missed=job.plan.generation)
    assert job.machine.record.plan is not None
    job.wait(job.machine.lead_times.torn_s)
    assert job.plan.after_step is None


def test_a_leader_hands_over_only_once_the_ring_without_its_trainer_trains() -> None:
    job = Job("w0", "w1", "w2", spec=LONG)
    job.sit("w0", "w1", "w2")
    job.see("w0", Phase.TRAINING, 1, 5)
    assert job.machine.at_rest
    job.see("w0", Phase.FAILED, 1, 5, reason="killed")
    assert not job.machine.at_rest  # all wait to hear that this ring stands
    job.sit("w1", "w2", generation=2, step=5)
    assert job.machine.record.generation == 2
    assert not job.machine.at_rest  # the members may not have heard of the leases yet
    job.see("w1", Phase.TRAINING, 2, 6)
    assert job.machine.at_rest


def test_a_leader_of_a_job_that_is_over_may_go() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.see("w0", Phase.FAILED, 1, 0, reason="killed")
    job.see("w1", Phase.FAILED, 1, 0, reason="killed")
    assert job.machine.record.state is JobState.FAILED
    assert job.machine.at_rest


def test_a_leader_of_a_job_that_is_over_waits_for_nothing_that_was_due_before() -> None:
    job = Job("w0", "w1", "w2", spec=LONG)
    job.sit("w0", "w1", "w2")
    job.see("w0", Phase.BROKEN, 1, 3)
    assert job.machine.wake_at < float("inf")
    job.feed(AskStop("enough"))
    assert job.machine.record.state is JobState.FAILED
    assert job.machine.wake_at == float("inf"), "else its shell would look again and again"


def test_a_ring_that_fails_is_planned_anew_once_it_is_known_who_is_gone_or_a_moment_later() -> None:
    job = Job("w0", "w1", "w2", spec=LONG)
    job.sit("w0", "w1", "w2")
    job.see("w0", Phase.BROKEN, 1, 3)
    assert job.machine.record.plan is None, "with the one in it that is gone, it would fail, too"
    assert job.machine.wake_at == pytest.approx(job.now + job.machine.lead_times.loss_s)
    job.see("w2", Phase.FAILED, 1, 3, reason="killed")
    assert (job.plan.roster, job.machine.wake_at) == (("w0", "w1"), float("inf"))


def test_a_ring_that_fails_all_at_once_is_planned_anew_at_once() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.see("w0", Phase.BROKEN, 1, 3)
    job.see("w1", Phase.BROKEN, 1, 3)
    assert job.plan.roster == ("w0", "w1")


def test_a_ring_that_fails_and_no_member_says_why_is_planned_anew_a_moment_later() -> None:
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", "w1")
    job.see("w0", Phase.BROKEN, 1, 3)
    job.now = job.machine.wake_at
    job.feed(TimePassed())
    assert job.plan.roster == ("w0", "w1")
    assert job.machine.wake_at == float("inf")


def test_a_leaver_that_hands_on_the_model_counts_among_those_the_job_may_have() -> None:
    job = Job("w0", spec=LONG, maximum=3)
    job.sit("w0")
    for worker in ("w1", "w2"):
        job.join(worker)
    job.see("w0", Phase.TRAINING, 1, 3, leaving=True)
    job.join("w3")
    job.see("w1", Phase.READY, 0)
    assert job.plan.roster == ("w0", "w1")
    job.see("w2", Phase.READY, 0)
    job.see("w3", Phase.READY, 0)
    job.sit("w0", "w1", generation=2, step=job.plan.after_step or 0)
    assert job.plan.roster == ("w1", "w2", "w3")


def test_a_ring_that_is_made_anew_has_no_more_members_than_the_job_may_have() -> None:
    job = Job("w0", spec=LONG, maximum=3)
    job.sit("w0")
    for worker in ("w1", "w2"):
        job.join(worker)
    job.see("w0", Phase.TRAINING, 1, 3, leaving=True)
    job.join("w3")
    job.see("w1", Phase.READY, 0)
    for worker in ("w2", "w3"):
        job.see(worker, Phase.READY, 0)
    job.see("w1", Phase.FAILED, 0, reason="killed")
    assert job.plan.roster == ("w0", "w2", "w3")
    job.join("w4")
    job.see("w4", Phase.READY, 0)
    job.see("w3", Phase.FAILED, 0, reason="killed")
    job.join("w5")
    job.see("w5", Phase.READY, 0)
    job.see("w2", Phase.FAILED, 0, reason="killed")
    assert job.plan.roster == ("w0", "w4", "w5")


def all_leave(phase: Phase) -> Job:
    """As many as the job may have, at once; others come in their places."""
    job = Job("w0", "w1", "w2", spec=LONG, maximum=3)
    job.sit("w0", "w1", "w2")
    job.see("w0", Phase.TRAINING, 1, 3, leaving=True)
    job.join("w3")
    job.see("w1", Phase.TRAINING, 1, 3, leaving=True)
    job.join("w4")
    for worker in ("w0", "w1", "w2"):
        job.see(worker, phase, 1, 3, leaving=True)
    return job


def test_one_of_many_leavers_hands_on_the_model_where_there_is_no_room_for_all() -> None:
    job = all_leave(Phase.TRAINING)
    for worker in ("w0", "w1", "w2"):  # on their way into a ring that comes to nothing
        job.see(worker, Phase.BROKEN, job.plan.generation, 3, leaving=True)
    assert set(job.plan.roster) == {"w0", "w1", "w2"}, "any of them may have the newest state"
    job.sit("w0", "w1", "w2", generation=job.plan.generation, step=3)
    for worker in ("w3", "w4"):
        job.see(worker, Phase.READY, 0)
    assert job.plan.roster == ("w1", "w2", "w3"), "two of them, as one is needed and there is room"


def after_the_first_ring_broke() -> Job:
    """Two have trained in a ring that the leader never saw stand, and one of them is gone."""
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", step=5)
    job.feed(Vanished("w1", "gone"))
    job.see("w0", Phase.BROKEN, 1, 5, booted=True)
    return job


def test_a_worker_that_has_not_booted_is_not_planned_with_those_that_trained() -> None:
    job = after_the_first_ring_broke()
    assert (job.machine.record.generation, job.machine.record.plan) == (0, None)
    job.join("w2")
    assert job.machine.record.plan is None
    assert job.orders("w2").boot_alone
    job.see("w2", Phase.REHEARSING, 0)
    job.see("w2", Phase.READY, 0)
    assert (job.plan.roster, job.plan.after_step) == (("w0", "w2"), None)


def test_another_leader_knows_that_a_ring_has_trained() -> None:
    job = after_the_first_ring_broke()
    job.succeed("w0")
    job.join("w2")
    assert job.machine.record.plan is None


@pytest.mark.parametrize("first", [(Phase.BROKEN, 1, True), (Phase.BOOTING, 0, False)])
def test_no_other_first_ring_begins_without_a_member_of_which_it_is_not_known_whether_it_trained(
    first: tuple[Phase, int, bool],
) -> None:
    """Its daemon died with the leader, and a new one says what step it has made before it knows in which ring."""
    job = after_the_first_ring_broke()
    job.succeed("w0")
    for worker in ("w2", "w3"):
        job.join(worker)
        for phase in (Phase.REHEARSING, Phase.READY):
            job.see(worker, phase, 0)
    assert job.machine.record.plan is None
    phase, generation, booted = first
    job.see("w0", phase, generation, 5, booted=booted)
    assert (job.machine.record.plan is None) == (not booted)
    job.see("w0", Phase.BROKEN, 1, 5, booted=True)
    assert job.plan.roster[0] == "w0"


def test_a_member_of_the_first_ring_that_never_sat_boots_alone_when_others_have() -> None:
    """Its ring stood for the others only: it would make them wait for its boot in the next."""
    job = Job("w0", "w1", spec=LONG)
    job.sit("w0", step=5)
    job.see("w1", Phase.BROKEN, 1, data=None)
    job.see("w0", Phase.BROKEN, 1, 5, booted=True)
    assert job.machine.record.plan is None
    assert (job.state("w0"), job.state("w1")) == (WorkerState.READY, WorkerState.JOINING)
    assert job.orders("w1").boot_alone


def test_a_worker_without_data_of_the_job_is_ready_once_it_has_sat() -> None:
    job = Job("w0", "w1")
    job.see("w0", Phase.TRAINING, 1, 5, data=None)
    job.feed(Vanished("w1", "gone"))
    job.see("w0", Phase.BROKEN, 1, 5, data=None, booted=True)
    assert job.state("w0") is WorkerState.READY


def test_a_worker_that_hangs_in_its_boot_is_not_waited_for_for_ever_where_a_ring_has_stood_before() -> None:
    job = after_the_first_ring_broke()
    job.join("w2")
    for _ in range(200):
        job.now += 4.0
        job.feed(TimePassed())
    assert job.state("w2") is None
    assert "joining for 600 s" in job.machine.record.gone[-1].reason


def test_a_script_that_ends_before_the_leader_hears_that_it_wished_to_leave_has_come_to_its_own_end() -> None:
    """Others would else go on from an older state, and train again what it has trained."""
    job = Job("w0", "w1")
    job.sit("w0", "w1")
    job.succeed("w0", "w1")
    job.see("w0", Phase.DONE, 1, 2, leaving=True)
    assert (job.state("w0"), job.machine.record.target) == (WorkerState.DONE, 2)


def test_a_leaver_that_alone_has_the_model_trains_on_up_to_the_step_though_its_newcomer_dies() -> None:
    job = Job("w0", spec=LONG)
    job.sit("w0")
    job.join("w1")
    job.join("w2")
    job.see("w0", Phase.TRAINING, 1, 3, leaving=True)
    job.see("w1", Phase.READY, 0)
    step = job.plan.after_step
    assert step
    job.see("w2", Phase.READY, 0)
    job.see("w1", Phase.FAILED, 0, reason="killed")
    assert (job.plan.roster, job.plan.after_step) == (("w0", "w2"), step)


def test_a_step_that_a_daemon_begun_anew_tells_of_counts_once_it_tells_by_which_leases_it_was_trained() -> None:
    job = in_a_switch()
    first, step = job.plan.generation, job.plan.after_step or 0
    job.feed(Vanished("w1", "gone"))
    job.see("w2", Phase.BROKEN, first, step + 5, reason="connection reset by peer")
    assert [plan.generation for plan in job.machine.record.superseded] == [first]
    job.succeed("w0", "w2")
    job.see("w0", Phase.BOOTING, 0, step + 5, data=None)
    assert job.machine.ledger is not None
    assert job.machine.ledger.step < step
    job.see("w0", Phase.BROKEN, 1, step, reason="connection reset by peer", leases_of=1)
    assert job.machine.ledger.step == step


def test_another_leader_takes_no_member_for_gone_from_the_ring_before_it_has_told() -> None:
    """Its plan came to nothing before the step was there, and too few were left for another."""
    job = Job("w0", "w1", spec=LONG, minimum=2)
    job.sit("w0", "w1")
    job.join("w2")
    job.see("w0", Phase.TRAINING, 1, 3, leaving=True)
    job.see("w2", Phase.READY, 0)
    assert job.plan.roster == ("w1", "w2")
    job.see("w2", Phase.FAILED, 0, reason="killed")
    assert job.machine.record.plan is None
    job.succeed("w0", "w1")
    job.join("w3")
    job.see("w3", Phase.READY, 0)
    assert job.machine.record.plan is None
    job.sit("w0", "w1", step=4)
    assert (job.plan.roster, job.plan.after_step is None) == (("w1", "w3"), False)


def test_a_leaver_is_in_no_ring_with_one_that_may_have_read_by_the_leases_of_a_plan_without_it() -> None:
    """That plan came to nothing, and is the newest no more."""
    job = Job("w0", "w1", "w2", spec=LONG, minimum=2)
    job.sit("w0", "w1", "w2")
    job.see("w2", Phase.TRAINING, 1, 3, leaving=True)
    plan = job.plan
    assert plan.roster == ("w0", "w1")
    job.see("w1", Phase.FAILED, plan.generation, plan.after_step or 0, reason="killed")
    assert job.machine.record.plan is None
    job.see("w0", Phase.BROKEN, plan.generation, plan.after_step or 0, reason="connection reset by peer", leases_of=1)
    job.see("w2", Phase.BROKEN, 1, plan.after_step or 0, reason="connection reset by peer", leaving=True)
    assert job.machine.record.plan is None
    assert job.machine.record.state is JobState.SCALING


def all_but_a_leaver_and_a_newcomer_are_gone() -> Job:
    """A leaver has missed a switch, and of the ring of that switch only the newcomer lives. Another is ready."""
    job = Job("w0", "w1", spec=LONG, minimum=2)
    job.sit("w0", "w1")
    job.join("w2")
    job.join("w3")
    job.see("w0", Phase.TRAINING, 1, 3, leaving=True)
    job.see("w2", Phase.READY, 0)
    step = job.plan.after_step
    job.see("w3", Phase.READY, 0)
    assert (job.plan.roster, step is None) == (("w1", "w2"), False)
    job.see("w0", Phase.TRAINING, 1, step or 0, leaving=True, missed=job.plan.generation)
    job.feed(Vanished("w1", "gone"))
    return job


def test_a_leaver_is_not_called_back_where_a_newcomer_has_trained_without_it() -> None:
    job = all_but_a_leaver_and_a_newcomer_are_gone()
    first, step = job.plan.generation, job.plan.after_step or 0
    job.see("w2", Phase.BROKEN, first, step + 5, reason="connection reset by peer", leases_of=first)
    assert (job.plan.generation, job.plan.roster, job.plan.after_step) == (first + 1, ("w2", "w3"), None)


def test_a_newcomer_that_has_not_told_where_it_is_may_have_read_what_was_a_leavers() -> None:
    """It is waited for a moment; then the leaver hands the model on without it."""
    job = all_but_a_leaver_and_a_newcomer_are_gone()
    first = job.plan.generation
    assert job.plan.generation == first
    job.wait(job.machine.lead_times.loss_s)
    assert (job.plan.generation, job.plan.roster, job.plan.after_step) == (first + 1, ("w0", "w3"), None)


def test_a_switch_is_as_many_steps_away_as_were_made_while_its_leader_could_do_nothing() -> None:
    distances = []
    for lay_about_s in (0.0, 4.0):
        job = Job("w0", "w1", spec=LONG)
        job.sit("w0", "w1")
        job.join("w2")
        for step in (1, 2, 3):
            job.see("w0", Phase.TRAINING, 1, step, at=900 + job.now)
        at = 900 + job.now
        job.now += lay_about_s
        job.see("w0", Phase.TRAINING, 1, 4, at=at + 0.01)
        job.see("w2", Phase.READY, 0)
        distances.append((job.plan.after_step or 0) - 4)
    assert distances[1] - distances[0] == pytest.approx(4.0 / 0.01, abs=5)
