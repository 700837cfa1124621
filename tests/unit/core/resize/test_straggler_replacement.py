"""What the job's own policy decides, and another worker in the place of a slow one: the leader's machine."""

from __future__ import annotations

from machine_job import Job

from edl.core.job.deadlines import Deadlines
from edl.core.job.leader_inputs import Measured, Ruled, TimePassed
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import AskScale, Phase
from edl.protocol.record import WorkerState
from edl.protocol.tally import Rate

SPEC = DataSpec(total=100_000, epochs=1, batch=10)


class Governed(Job):
    """Workers that enter whatever ring is planned for them."""

    @property
    def record(self):
        return self.machine.record

    def start(self, *workers: str) -> None:
        for worker in workers:
            self.join(worker)
        self.enter()

    def enter(self) -> None:
        self.feed(TimePassed())
        plan = self.record.plan
        assert plan is not None
        step = plan.after_step or self.record.began_step
        for worker in set(self.record.roster) - set(plan.roster):
            self.see(worker, Phase.DONE, self.record.generation, step, data=SPEC, leaving=True)
        for worker in plan.roster:
            self.see(worker, Phase.TRAINING, plan.generation, step, data=SPEC)

    def come(self, worker: str) -> None:
        self.join(worker)
        self.see(worker, Phase.REHEARSING, data=SPEC)
        self.see(worker, Phase.READY, data=SPEC)

    def rule(self, size: int, *replace: str, act: bool = True) -> None:
        self.feed(Ruled(size, replace, "because", {"x": 1.0}, act))

    def state(self, worker: str) -> WorkerState:
        return next(member.state for member in self.record.members if member.identity.id == worker)

    def decision(self):
        return [tell.fact.details() for tell in self.told if tell.fact.kind.value == "decision"][-1]


def job_of_two(**limits: int) -> Governed:
    job = Governed(2, **limits)
    job.start("a", "b")
    assert job.record.roster == ("a", "b")
    return job


def test_a_decision_is_told_kept_and_done() -> None:
    job = job_of_two()
    job.rule(3)
    assert job.decision() == {"size": 3, "x": 1.0, "reason": "because", "act": True}
    assert (job.record.target, job.record.sizing.ruling) == (3, "because")
    job.rule(1, act=False)
    assert job.record.target == 3
    assert job.decision()["act"] is False


def test_limits_hold() -> None:
    job = job_of_two(maximum=2)
    job.rule(3)
    assert job.record.target == 2
    assert job.decision()["act"] is False


def test_another_comes_before_the_slow_one_goes() -> None:
    job = job_of_two()
    job.rule(2, "a")
    assert job.record.target == 3
    job.come("c")
    job.enter()
    assert job.record.target == 2
    assert {m.identity.id: m.state for m in job.record.members}["a"] is WorkerState.LEAVING
    job.enter()
    assert (job.record.roster, job.record.target, job.record.sizing.replacing) == (("b", "c"), 2, None)


def test_where_no_more_are_allowed_the_slow_one_goes_first() -> None:
    job = job_of_two(maximum=2)
    job.rule(2, "a")
    assert job.record.target == 1
    job.enter()
    assert (job.record.roster, job.record.target, job.record.sizing.replacing) == (("b",), 2, None)
    job.come("c")
    job.enter()
    assert job.record.roster == ("b", "c")


def test_no_worker_is_replaced_below_the_minimum_nor_is_the_last_one() -> None:
    job = job_of_two(minimum=2, maximum=2)
    job.rule(2, "a")
    assert (job.record.target, job.record.sizing.replacing, job.decision()["act"]) == (2, None, False)
    alone = Governed(1)
    alone.start("a")
    alone.rule(1, "a")
    assert alone.record.sizing.replacing is None


def test_a_slow_one_that_dies_is_replaced_all_the_same() -> None:
    job = job_of_two()
    job.rule(2, "a")
    job.see("a", Phase.FAILED, 1, 0, reason="killed")
    assert (job.record.target, job.record.sizing.replacing) == (2, None)


def test_who_asks_for_a_size_meanwhile_gets_that() -> None:
    job = job_of_two()
    job.rule(2, "a")
    job.feed(AskScale(4))
    assert (job.record.target, job.record.sizing.replacing) == (4, None)


def test_no_newcomer_is_waited_for_longer_than_a_boot_may_take() -> None:
    job = job_of_two()
    job.rule(2, "a")
    job.now += Deadlines().boot_s
    job.feed(TimePassed())
    assert (job.record.target, job.record.sizing.replacing) == (2, None)
    assert job.decision()["act"] is False


def test_a_newcomer_that_is_not_in_the_ring_by_then_leaves_again_else_the_job_would_be_larger() -> None:
    job = job_of_two()
    job.rule(2, "a")
    job.now += Deadlines().boot_s - 1
    job.unmet = {"c"}
    job.come("c")
    assert job.record.plan is None
    job.now += 1
    job.feed(TimePassed())
    assert (job.record.target, job.record.sizing.replacing) == (2, None)
    assert job.state("c") is WorkerState.LEAVING
    assert job.state("a") is WorkerState.TRAINING


def test_a_newcomer_whose_switch_is_planned_by_then_takes_the_slow_ones_place() -> None:
    job = job_of_two()
    job.rule(2, "a")
    job.come("c")
    assert job.record.plan is not None
    job.now += Deadlines().boot_s
    job.feed(TimePassed())
    assert job.record.sizing.replacing is not None
    job.enter()
    assert job.state("a") is WorkerState.LEAVING


def test_what_was_measured_is_kept_and_wakes_no_worker() -> None:
    job = job_of_two()
    pressing = job.machine.pressing
    job.feed(Measured((Rate(2, 100, 1000, 1.0),)))
    assert job.record.sizing.rates == (Rate(2, 100, 1000, 1.0),)
    assert job.machine.pressing == pressing
