"""Rings that come to nothing: whose fault it was, who is left out, and that the others train on (I14)."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import msgspec
import pytest
from machine_job import meet

from edl.core.job.job_report import status_of
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Refuse, Reported, Tell, TimePassed, TookOver, Vanished
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.switch import ring_blame
from edl.core.switch.ring_blame import Evidence, accused, condemned, judge, judge_unprepared
from edl.core.worker.limb_votes import ELSEWHERE, UNLIKE
from edl.facts import WorkerLost, WorkerUnfit
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Observation, Phase, Register
from edl.protocol.record import Identity, JobState, Record, Trials
from edl.protocol.tally import LossCause

LONG = DataSpec(total=10_000_000, epochs=1, batch=10)
VAIN = "the ring did not form: not all members came within 60 s"
ROUTE = "the ring did not form: connect: no route to host"


class Job:
    """A machine, and workers of which some can be part of no ring."""

    def __init__(self, np: int = 2, minimum: int = 1) -> None:
        self.machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0))
        self.np, self.minimum, self.now, self.step = np, minimum, 0.0, 0
        self.told: list[Tell] = []
        self.leases: dict[str, int] = {}  # by the leases of which generation each has trained
        for number in range(np):
            self.join(f"w{number}")

    def feed(self, happened: object, after_s: float = 0.01) -> list[object]:
        self.now += after_s
        commands = [*self.machine.handle(happened, self.now), *meet(self.machine, self.now)]  # type: ignore[arg-type]
        self.told += [command for command in commands if isinstance(command, Tell)]
        return list(commands)

    def join(self, worker: str, host: str = "") -> list[object]:
        host = host or f"host-{worker}"
        return self.feed(Register(Identity(worker, host, f"10.0.0.{len(host)}", 1, 2), self.np, self.minimum, 0))

    def see(self, worker: str, phase: Phase, generation: int, step: int, reason: str = "") -> None:
        data = None if phase is Phase.BROKEN and not self.record.generation else LONG
        leases_of = self.leases[worker] = generation if phase is Phase.TRAINING else self.leases.get(worker, 0)
        seen = Observation(
            phase=phase,
            generation=generation,
            step=step,
            leases_of=leases_of,
            step_time_s=0.01,
            data=data,
            reason=reason,
            booted=generation > 1,
        )
        self.feed(Reported(worker, seen))

    def ready(self, worker: str, host: str = "") -> None:
        self.join(worker, host)
        for phase in (Phase.REHEARSING, Phase.READY):
            self.see(worker, phase, 0, 0)

    def train(self) -> None:
        """The planned ring stands and makes steps; else the present one makes some."""
        plan = self.record.plan
        if plan is not None:
            self.step = plan.after_step if plan.after_step is not None else self.step
        generation, roster = (plan.generation, plan.roster) if plan else (self.record.generation, self.record.roster)
        for worker in roster:
            self.see(worker, Phase.TRAINING, generation, self.step)
        self.step += 5
        for worker in roster:
            if self.record.plan is None:
                self.see(worker, Phase.TRAINING, generation, self.step)

    def sit(self) -> None:
        """The planned ring stands, for a moment: one of its members has not told yet."""
        plan = self.record.plan
        assert plan is not None
        for worker in plan.roster[1:]:
            self.see(worker, Phase.TRAINING, plan.generation, plan.after_step or self.step)

    def fail(self, **said: str) -> None:
        """The planned ring does not form. Who says nothing of its own has waited in vain."""
        plan = self.record.plan
        assert plan is not None
        self.step = plan.after_step or self.step
        for worker in plan.roster:
            step = self.step if worker in self.record.roster else 0
            if self.record.plan is plan and said.get(worker) != "":
                self.see(worker, Phase.BROKEN, plan.generation, step, said.get(worker, VAIN))
        for _ in range(60):
            if self.record.plan is plan or self.record.plan is None:
                self.feed(TimePassed(), 0.5)

    @property
    def record(self) -> Record:
        return self.machine.record

    @property
    def roster(self) -> tuple[str, ...]:
        return self.record.plan.roster if self.record.plan else self.record.roster

    @property
    def members(self) -> set[str]:
        return {member.identity.id for member in self.record.members}

    def unfit(self) -> list[tuple[str, str]]:
        return [(t.fact.worker, t.fact.reason) for t in self.told if isinstance(t.fact, WorkerUnfit)]


def training(np: int = 2, minimum: int = 1) -> Job:
    job = Job(np, minimum)
    job.train()
    return job


def test_no_more_newcomers_that_failed_are_tried_at_a_time_than_make_up_the_least_size() -> None:
    job = training(2, minimum=2)
    job.ready("n1")
    job.fail(n1=ROUTE)
    job.ready("n2")
    job.train()
    assert job.roster == ("w0", "w1", "n2")
    job.fail(n2=ROUTE)
    job.feed(Vanished("w1", "gone"))
    assert job.roster == ("w0", "n1"), "both have failed once, and one of them is enough"
    job.fail(n1=ROUTE)
    assert job.roster == ("w0", "n2"), "n1 is unfit; n2 is the next that the least size needs"


def test_a_newcomer_that_has_not_failed_comes_before_those_that_have() -> None:
    job = training(2, minimum=2)
    job.ready("n1")
    job.fail(n1=ROUTE)
    job.ready("n2")
    job.feed(Vanished("w1", "gone"))
    assert job.roster == ("w0", "n2")


def test_a_plan_keeps_its_step_with_a_newcomer_that_none_has_met_where_too_few_would_be_left() -> None:
    job = training(3, minimum=3)
    last = job.machine.seen.observation("w2")
    assert last is not None
    leaving = msgspec.structs.replace(last, leaving=True)
    job.feed(Reported("w2", leaving))
    job.ready("n1")
    assert job.roster == ("w0", "w1", "n1")
    after_step = job.record.plan.after_step
    job.ready("n2")
    job.feed(Vanished("n1", "gone"))
    assert job.roster == ("w0", "w1", "n2"), "the two that were planned for are fewer than the least size"
    assert job.record.plan.after_step == after_step is not None, "the ring that works is needed until then"


def test_a_ring_that_fails_for_a_newcomers_sake_is_made_anew_without_it_at_once() -> None:
    job = training()
    job.ready("bad")
    assert job.roster == ("w0", "w1", "bad")
    before = job.now
    job.see("bad", Phase.BROKEN, job.record.plan.generation, 0, ROUTE)
    assert job.roster == ("w0", "w1"), "it says so itself: no other words are waited for"
    assert job.now - before < 0.1
    assert job.unfit() == []


def test_a_newcomer_that_fails_twice_is_unfit_and_costs_four_plans() -> None:
    job = training()
    planned = job.record.planned
    job.ready("bad")
    for _ in range(2):
        assert job.roster == ("w0", "w1", "bad")
        job.fail(bad=ROUTE)
        assert job.roster == ("w0", "w1")
        job.train()
    assert job.unfit() == [("bad", ROUTE)]
    assert "bad" not in job.members
    job.train()
    assert (job.record.plan, job.record.planned - planned) == (None, 4)
    assert [(one.worker, one.host) for one in status_of(job.machine, 1, "w0", {}).unfit] == [("bad", "host-bad")]


def test_a_newcomer_is_suspected_where_all_say_the_same() -> None:
    job = training()
    job.ready("bad")
    for _ in range(2):
        job.fail()
        job.train()
    assert [worker for worker, _ in job.unfit()] == ["bad"]


def test_a_newcomer_that_was_only_unlucky_is_in_the_next_ring() -> None:
    job = training()
    job.ready("w2")
    job.fail()
    job.train()
    job.train()
    assert job.record.roster == ("w0", "w1", "w2")
    assert job.record.trials.strikes == ()


def test_a_newcomer_that_sat_in_the_ring_goes_along_to_the_next_as_its_pipeline_has_read_by_its_leases() -> None:
    job = training()
    job.ready("w2")
    job.sit()
    job.fail()
    assert job.roster == ("w0", "w1", "w2")
    job.fail()
    assert (job.roster, job.unfit()) == (("w0", "w1"), [])
    job.train()
    assert [worker for worker, _ in job.unfit()] == ["w2"], "the others have a ring without it"


def test_a_newcomer_that_has_made_a_step_that_the_others_lack_goes_along_to_the_next_ring() -> None:
    """The ring broke for the others alone, in its first step; the script brings data of its own, so has no leases."""
    job = training()
    job.ready("w2")
    plan = job.record.plan
    assert plan is not None and plan.after_step is not None
    for worker in ("w0", "w1"):
        job.see(worker, Phase.BROKEN, plan.generation, plan.after_step, "connection reset by peer")
    job.feed(TimePassed(), 0.5)
    assert job.record.plan is plan, "the newcomer that is well tells within a second that its ring has failed"
    job.see("w2", Phase.BROKEN, plan.generation, plan.after_step + 1, "connection reset by peer")
    job.feed(TimePassed(), 0.5)
    assert job.roster == ("w0", "w1", "w2")


def test_of_newcomers_that_sat_in_the_ring_and_failed_together_none_is_unfit_for_the_others_sake() -> None:
    """Both have read by leases that the others are given anew: in their places come others."""
    job = training()
    for worker in ("w2", "bad", "w3"):
        job.ready(worker)
    job.train()  # w2 came first, and alone
    job.sit()
    for _ in range(2):
        assert set(job.roster) == {"w0", "w1", "w2", "bad", "w3"}
        job.fail()
    assert set(job.roster) == {"w0", "w1", "w2"}
    job.train()
    assert (job.unfit(), job.members) == ([], {"w0", "w1", "w2"})


def test_a_newcomer_is_parted_with_whose_samples_the_others_were_given_before_it_told_that_it_sat() -> None:
    job = training()
    job.ready("w2")
    plan = job.record.plan
    assert plan is not None
    job.fail(w2="")
    assert job.roster == ("w0", "w1")
    job.train()
    job.leases["w2"] = plan.generation
    job.see("w2", Phase.BROKEN, plan.generation, job.step, VAIN)
    assert "w2" not in job.members
    assert job.unfit() == [], "it is not its fault"
    assert [t.fact.worker for t in job.told if isinstance(t.fact, WorkerLost)] == ["w2"]


def test_newcomers_that_failed_together_are_tried_one_by_one() -> None:
    job = training()
    for worker in ("w2", "bad", "w3"):
        job.ready(worker)
    job.train()  # w2 came first, and alone
    rings = 0
    while job.record.plan is not None:
        rings += 1
        job.fail() if "bad" in job.roster else job.train()
        assert rings < 20
    assert (job.unfit(), set(job.record.roster)) == ([("bad", VAIN)], {"w0", "w1", "w2", "w3"})


def test_who_never_came_is_blamed_before_newcomers_that_did() -> None:
    job = training()
    job.ready("w2")
    job.train()
    job.ready("w3")
    job.ready("w4")
    job.train()
    job.fail(w4="")  # says nothing
    assert [strike.worker for strike in job.record.trials.strikes] == ["w4"]


def test_another_leader_goes_on_from_what_was_found_out() -> None:
    job = training()
    job.ready("bad")
    job.fail()
    job.machine = JobMachine(job.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1", "bad"})))
    for worker in ("w0", "w1"):
        job.see(worker, Phase.BROKEN, job.record.planned - 1, job.step)
    job.see("bad", Phase.BROKEN, job.record.planned - 1, 0)
    assert job.roster == ("w0", "w1")
    job.train()
    job.fail()
    job.train()
    assert [worker for worker, _ in job.unfit()] == ["bad"]


def test_another_leader_makes_a_ring_anew_that_is_on_record_as_failed_though_no_member_says_so_any_more() -> None:
    job = Job(3)
    job.fail(w0="connection reset by peer", w1="connection reset by peer", w2="connection reset by peer")
    planned = job.record.planned
    for worker in ("w1", "w2"):
        job.see(worker, Phase.TRAINING, planned, 0)
    job.see("w0", Phase.BROKEN, planned, 0, "connection reset by peer")
    while job.record.trials.judged != planned:
        job.feed(TimePassed(), 0.05)
    assert job.record.planned == planned, "it is not made anew at once"
    job.machine = JobMachine(job.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1", "w2"})))
    job.leases["w0"] = 0
    for worker in ("w1", "w2"):
        job.see(worker, Phase.TRAINING, planned, 0)
    job.see("w0", Phase.READY, 0, 0)  # it has booted alone
    assert job.record.planned > planned


def test_a_ring_that_was_planned_by_the_leader_before_excuses_all_its_members() -> None:
    job = training()
    job.ready("w2")
    job.machine = JobMachine(job.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1", "w2"})))
    job.fail(w0="the rendezvous was closed")
    assert job.record.trials.strikes == ()


def test_a_ring_that_lost_a_member_says_nothing_of_the_others() -> None:
    job = training()
    job.ready("w2")
    plan = job.record.plan
    assert plan is not None
    job.see("w2", Phase.BROKEN, plan.generation, 0, "connection reset by peer")
    job.feed(Vanished("w1", "gone"))
    assert job.roster == ("w0", "w2")
    assert job.record.trials.strikes == ()


def test_a_newcomer_is_not_blamed_for_rings_that_failed_for_one_whose_end_was_not_known_yet() -> None:
    job = training(3)
    job.ready("w3")
    job.sit()
    for _ in range(2):
        job.fail(w0="connection reset by peer", w2="connection reset by peer", w3="connection reset by peer", w1="")
        assert condemned(job.record.trials) == set()
    job.feed(Vanished("w1", "its daemon's session ended"))
    assert (job.roster, job.unfit()) == (("w0", "w2", "w3"), [])
    assert job.record.trials.strikes == ()


def test_a_newcomer_is_not_blamed_before_a_member_that_trained_without_it_has_come_or_told_why_not() -> None:
    ring = Evidence(5, ("w0", "w1", "new"), ("w0", "w1"), {"w0": "reset by peer"}, frozenset({"w0", "new"}), {})
    judgement = judge(Trials(), ring)
    assert (judgement.trials.judged, judgement.trials.strikes) == (5, ())
    come = dataclasses.replace(ring, came=frozenset(ring.roster))
    assert [strike.worker for strike in judge(Trials(), come).trials.strikes] == ["new"]


def test_a_ring_without_newcomers_counts_as_failed_though_a_member_is_silent() -> None:
    """Else it would be tried again without end."""
    ring = Evidence(5, ("w0", "w1"), ("w0", "w1"), {"w0": "reset by peer"}, frozenset({"w0"}), {})
    assert judge(Trials(), ring).trials.failed == 1


def test_a_newcomer_that_was_not_seen_to_come_is_not_blamed_where_another_turns_out_to_hang() -> None:
    job = training(3)
    job.ready("w3")
    job.fail(w0=VAIN, w2=VAIN, w1="", w3="")
    job.train()
    job.fail(w0=VAIN, w2=VAIN, w1="", w3="")
    assert [strike.times for strike in job.record.trials.strikes] == [2]
    assert "w3" in job.members, "whether the others have a ring without it is to be seen"
    job.feed(Vanished("w1", "it hangs"))
    assert (job.unfit(), job.record.trials.strikes) == ([], ())


def test_a_newcomer_is_not_blamed_for_a_ring_that_failed_with_a_member_that_turns_out_to_be_unfit() -> None:
    job = training(3)
    job.ready("w3")
    job.sit()
    job.fail(w0="connection reset by peer", w2="connection reset by peer", w3="connection reset by peer", w1="")
    assert [strike.worker for strike in job.record.trials.strikes] == ["w3"]
    for _ in range(2):
        job.fail(w1=ROUTE)
    assert [worker for worker, _ in job.unfit()] == ["w1"]
    assert job.record.trials.strikes == ()


def test_what_a_newcomer_has_said_of_itself_is_held_against_it_though_another_is_gone() -> None:
    job = training(3)
    job.ready("bad")
    job.fail(bad=ROUTE)
    job.feed(Vanished("w1", "its daemon's session ended"))
    assert [strike.worker for strike in job.record.trials.strikes] == ["bad"]


def test_a_ring_that_fails_without_the_condemned_worker_acquits_it() -> None:
    job = training(3)
    job.ready("w3")
    job.sit()
    for _ in range(2):
        job.fail()
    assert job.roster == ("w0", "w1", "w2")
    job.fail()
    assert job.record.trials.strikes == ()
    assert "w3" in job.members


@pytest.mark.parametrize("first", [True, False])
def test_no_worker_is_blamed_for_a_ring_that_failed_as_its_daemon_died(first: bool) -> None:
    job = Job(2) if first else training(1)
    if not first:
        job.ready("w1")
    assert "w1" in job.roster
    job.feed(Register(Identity("w1", "host-w1", "10.0.0.7", 1, 3), job.np, job.minimum, 0))
    planned = job.record.planned
    job.see("w1", Phase.BROKEN, planned, 0, "its daemon did not answer")
    assert (job.roster, job.record.planned) == (("w0", "w1"), planned + 1), "another ring is formed at once"
    assert job.record.trials.strikes == ()


def test_where_no_newcomer_is_there_one_after_another_is_left_out() -> None:
    """Each says the same, and only w1 cannot be part of it."""
    job = training(3)
    job.see("w0", Phase.BROKEN, 1, job.step)
    rings = []
    for _ in range(10):
        for _ in range(60):
            job.feed(TimePassed(), 0.5)
        if job.record.plan is None:
            break
        rings.append(job.roster)
        if "w1" in job.roster:
            job.fail(w0="connection reset by peer", w1="connection reset by peer", w2="connection reset by peer")
        else:
            job.train()
    assert rings[:2] == [("w0", "w1", "w2")] * 2
    assert set(rings[-1]) == {"w0", "w2"}
    assert [worker for worker, _ in job.unfit()] == ["w1"]
    assert set(job.record.roster) == {"w0", "w2"}


def test_a_worker_that_was_left_out_is_not_held_to_be_unfit_where_another_turns_out_to_be_gone() -> None:
    """It parts for its data: the ring that stood without it has trained what it had read."""
    job = training(3)
    job.see("w0", Phase.BROKEN, 1, job.step)
    while not job.record.trials.left_out:
        for _ in range(60):
            job.feed(TimePassed(), 0.5)
        for worker in job.roster:  # each has come to that ring, and read by its leases
            job.leases[worker] = job.record.planned
        if not job.record.trials.left_out:
            job.fail(w0="connection reset by peer", w1="connection reset by peer", w2="connection reset by peer")
    out = job.record.trials.left_out
    assert out not in job.roster
    generation, staying = job.record.planned, job.roster
    for worker in staying:
        job.see(worker, Phase.TRAINING, generation, job.step)
    assert job.record.generation == generation
    job.feed(Vanished(staying[-1], "it hangs"))
    assert job.unfit() == []
    assert [told.fact.cause for told in job.told if isinstance(told.fact, WorkerLost) and told.fact.worker == out] == [
        LossCause.LEFT_BEHIND.value
    ]
    assert out not in job.members


def test_a_member_is_not_left_out_where_the_one_that_the_ring_before_did_without_is_gone() -> None:
    job = training(2)
    job.see("w0", Phase.BROKEN, 1, job.step)
    while not job.record.trials.left_out:
        for _ in range(60):
            job.feed(TimePassed(), 0.5)
        if not job.record.trials.left_out:
            job.fail(w0="connection reset by peer", w1="connection reset by peer")
    [alone] = job.roster
    [other] = job.members - {alone}
    job.see(alone, Phase.BROKEN, job.record.planned, job.step, "connection reset by peer")
    job.feed(TimePassed(), 2.0)
    assert job.record.trials.left_out == alone, "the ring is tried with the other one alone"
    job.feed(Vanished(other, "it was killed"))
    job.ready("w2")
    for _ in range(60):
        job.feed(TimePassed(), 0.5)
    assert job.record.state is not JobState.FAILED
    assert alone in job.roster


def test_a_job_that_no_ring_can_be_made_of_ends_and_says_what_each_said() -> None:
    job = training(3)
    job.see("w0", Phase.BROKEN, 1, job.step)
    planned = job.record.planned
    for _ in range(20):
        for _ in range(60):
            job.feed(TimePassed(), 0.5)
        if job.record.plan is not None:
            job.fail(w0="connection reset by peer", w1="connection reset by peer", w2="connection reset by peer")
    assert job.record.state is JobState.FAILED
    assert "w1 says: connection reset by peer" in job.record.reason
    assert job.record.planned - planned <= 2 + ring_blame.RINGS


def test_the_first_ring_ends_the_job_with_the_name_of_who_cannot_form_it() -> None:
    job = Job(3)
    for _ in range(2):
        job.fail(w1=ROUTE)
    assert job.record.state is JobState.FAILED
    assert "worker w1 of host host-w1 cannot be part of a ring" in job.record.reason
    assert ROUTE in job.record.reason
    assert job.unfit() == [("w1", ROUTE)]


def test_a_first_ring_that_fails_for_no_known_reason_ends_the_job_after_three() -> None:
    job = Job(2)
    for _ in range(ring_blame.FIRST_RINGS):
        assert job.record.plan is not None
        job.fail()
    assert job.record.state is JobState.FAILED
    assert f"w0 says: {VAIN}; w1 says: {VAIN}" in job.record.reason


def test_failures_of_first_rings_are_counted_anew_when_a_member_of_one_is_gone() -> None:
    job = Job(3)
    job.join("w3")
    job.feed(Reported("w2", Observation(phase=Phase.BOOTING, step=0, leaving=True)))
    job.fail()
    assert job.record.trials.failed == 1
    job.feed(Vanished("w2", "it has left"))
    for _ in range(ring_blame.FIRST_RINGS):
        assert (job.roster, job.record.state) == (("w0", "w1", "w3"), JobState.STARTING)
        job.fail()
    assert job.record.state is JobState.FAILED


def test_a_host_whose_workers_are_unfit_sends_no_more_for_a_while() -> None:
    job = training()
    for worker in ("bad1", "bad2"):
        job.ready(worker, host="broken")
        for _ in range(2):
            job.fail(**{worker: ROUTE})
            job.train()
    refused = [command for command in job.join("bad3", host="broken") if isinstance(command, Refuse)]
    assert "2 workers of host broken could not be part of a ring" in refused[0].reason
    assert job.join("w2", host="another") != refused
    assert "w2" in job.members
    for _ in range(700):
        job.feed(TimePassed(), 1.0)
    job.join("bad4", host="broken")
    assert "bad4" in job.members


# ------------------------------------------------------------------------------------------------- whose fault it was


def evidence(roster: int, said: dict[int, str], base: int = 0) -> Evidence:
    names = tuple(f"w{number}" for number in range(roster))
    return Evidence(
        generation=2,
        roster=names,
        base=names[:base],
        said={f"w{number}": reason for number, reason in said.items()},
        came=frozenset(f"w{number}" for number in said),
        addresses={name: f"10.0.0.{number}" for number, name in enumerate(names)},
    )


def unreachable(number: int) -> str:
    return f"the ring did not form: connect [10.0.0.{number}]:4711: No route to host"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({0: VAIN, 1: ROUTE, 2: VAIN}, {"w1"}),
        ({0: ROUTE, 1: ROUTE, 2: ROUTE}, set()),  # all say it: it is no worker's own
        ({0: VAIN, 1: VAIN, 2: VAIN}, set()),
        ({0: unreachable(2), 1: unreachable(2), 2: VAIN}, {"w2"}),  # whom the others cannot reach
        ({0: VAIN, 1: VAIN, 2: unreachable(0)}, {"w2"}),  # one of a pair, and it is the newcomer
        ({0: VAIN, 1: unreachable(0), 2: VAIN}, set()),  # one of a pair that were in a ring together
        ({0: "Connection closed by peer [10.0.0.1]:4711", 1: VAIN, 2: VAIN}, set()),
        ({0: "ring 2 was not prepared, or has failed since", 1: VAIN, 2: VAIN}, set()),
        ({0: "the ring did not form: it was given up before", 1: VAIN, 2: VAIN}, set()),
        ({0: ELSEWHERE, 1: VAIN, 2: VAIN}, set()),  # its limb is the one that knows why
        ({0: VAIN, 1: VAIN, 2: UNLIKE}, set()),
    ],
)
def test_whom_the_words_point_at(said: dict[int, str], expected: set[str]) -> None:
    assert set(accused(evidence(3, said, base=2), ("w0", "w1"))) == expected


def test_newcomers_that_fail_together_beside_training_are_never_unfit_together() -> None:
    """As where no more of them may be left out than are needed: it is not known which one it is."""
    trials, both = Trials(), evidence(4, dict.fromkeys(range(4), VAIN), base=2)
    for _ in range(3):
        judgement = judge_unprepared(trials, both, ("w2", "w3"))
        assert judgement.unfit == {}
        trials = judgement.trials
    alone = judge_unprepared(trials, evidence(3, dict.fromkeys(range(3), VAIN), base=2), ("w2",))
    assert set(alone.unfit) == {"w2"}
    assert [(strike.worker, strike.times) for strike in alone.trials.strikes] == [("w3", 1)]


def test_a_worker_that_alone_has_the_newest_step_is_the_last_to_be_left_out() -> None:
    """It came as a newcomer, into a ring that broke after its first step, before the leader had seen it stand."""
    said = {0: "connection reset by peer", 1: "connection reset by peer"}
    trials = Trials(proven=("w0",))
    for generation in (2, 3):
        ring = evidence(2, said, base=1)
        ring = dataclasses.replace(ring, generation=generation, ahead=frozenset({"w1"}))
        trials = judge(trials, ring).trials
    assert trials.left_out == "w0"
    assert not trials.strikes
    behind = Trials(proven=("w0",))
    for generation in (2, 3):
        behind = judge(behind, dataclasses.replace(evidence(2, said, base=1), generation=generation)).trials
    assert condemned(behind) == {"w1"}, "without a step of its own it is to blame, as the newcomer"


@pytest.mark.parametrize("seed", range(200))
def test_however_a_bad_worker_shows_it_is_found_and_no_other_is(seed: int) -> None:
    """A ring fails whenever it has the bad one in it. Words are right, or say nothing."""
    source = random.Random(seed)
    workers = source.randint(3, 6)
    bad = source.randrange(workers)
    names = [f"w{number}" for number in range(workers)]
    trials, roster = Trials(), tuple(names)
    rings = Counter[str]()
    for generation in range(2, 40):
        words = (VAIN, "connection reset by peer", "it was aborted")
        said = {worker: source.choice(words) for worker in roster}
        if source.random() < 0.3:
            said[f"w{bad}"] = ROUTE
        elif source.random() < 0.3:
            said |= {worker: unreachable(bad) for worker in roster if worker != f"w{bad}"}
        found = Evidence(generation, roster, tuple(names), said, frozenset(roster), _addresses(names))
        judgement = judge(trials, found)
        trials = judgement.trials
        rings["failed"] += 1
        assert not judgement.hopeless
        assert set(judgement.unfit) <= {f"w{bad}"}
        if judgement.unfit:
            break
        roster = tuple(name for name in names if name != trials.left_out)
        if f"w{bad}" not in roster:
            assert set(ring_blame.stood(trials, roster).unfit) == {f"w{bad}"}
            break
    else:
        pytest.fail("it was never found")
    assert rings["failed"] <= workers + 3


def _addresses(names: list[str]) -> dict[str, str]:
    return {name: f"10.0.0.{number}" for number, name in enumerate(names)}


FAULT = "the gradients were not averaged: an error that is no broken ring: ValueError: no such numbers"


def test_what_those_who_trained_raise_in_a_ring_with_a_newcomer_is_held_against_the_newcomer() -> None:
    """Once, and once more alone with them. The others have waited for the one that raises it, and know of nothing."""
    job = training(2)
    job.ready("n1")
    for _ in range(2):
        assert job.roster == ("w0", "w1", "n1")
        job.fail(w0=FAULT)
        assert job.roster == ("w0", "w1")
        job.train()
        job.feed(TimePassed())
    assert job.unfit() == [("n1", f"with it w0 meets {FAULT}")]
    assert job.members == {"w0", "w1"}


def test_what_a_member_raises_without_any_newcomer_is_its_own() -> None:
    job = training(3)
    job.feed(Vanished("w2", "gone"))
    for _ in range(2):
        assert job.roster == ("w0", "w1")
        job.fail(w0=FAULT)
    assert job.roster == ("w1",)
    job.train()
    assert job.unfit() == [("w0", FAULT)]
