"""Workers whose states differ: who from whom, and what their leader makes of it (I15)."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import Job

from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import TookOver
from edl.core.job.leader_machine import JobMachine
from edl.core.worker.digest import SKETCHED, final, fingerprint_of_value, sketch
from edl.core.worker.divergence_finder import (
    Consequence,
    Difference,
    at_end,
    causes,
    difference,
    ended_in,
    is_corrupt,
    is_proven,
    next_check,
    outcome,
    told,
)
from edl.core.worker.next_move import NEVER
from edl.events import Kind
from edl.protocol.divergence_report import Checking, Divergence, EndState, Fingerprint, OnDivergence, SameValue
from edl.protocol.job_policy import JobPolicy
from edl.protocol.leader_messages import Phase, Register
from edl.protocol.record import FailedBy, Identity, JobState

FOUND = Divergence(
    generation=1,
    step=200,
    equal_step=100,
    first="fc.weight",
    differing=2,
    compared=9,
    workers=("w1",),
    root="w0",
    majority=False,
)


def states(*digests: str) -> list[list[Fingerprint]]:
    """One letter for each tensor of each rank."""
    return [[Fingerprint(f"t{place}", ord(letter)) for place, letter in enumerate(rank)] for rank in digests]


@pytest.mark.parametrize(
    ("by_rank", "expected"),
    [
        (("abc", "abc", "abc"), None),
        (("abc", "abx", "abc"), Difference("t2", 1, 3, (1,), 0, True)),
        (("xbc", "abc", "abc"), Difference("t0", 1, 3, (0,), 1, True)),
        (("abc", "xby"), Difference("t0", 2, 3, (1,), 0, False)),  # which one is right is not known
        (("xyc", "abc", "xyc", "abc"), Difference("t0", 2, 3, (1, 3), 0, False)),
        (("abx", "aby", "abc", "abc"), Difference("t2", 1, 3, (0, 1), 2, False)),  # the most alike, but no majority
        (("ab", "abc", "abc"), Difference("t2", 1, 3, (0,), 1, True)),  # a state that one has not got
        (("abc", "ab", "ab"), Difference("t2", 1, 3, (0,), 1, True)),
    ],
)
def test_who_differs_and_in_what_first(by_rank: tuple[str, ...], expected: Difference | None) -> None:
    assert difference(states(*by_rank)) == expected


def test_all_members_compare_after_the_same_steps_whenever_they_came() -> None:
    assert [next_check(step, 100, 2, 0) for step in (0, 1, 4, 99, 100, 101)] == [1, 4, 16, 100, 200, 200]
    assert [next_check(step, 100, 3, 90) for step in (90, 91, 94, 100, 106, 154)] == [91, 94, 100, 106, 154, 200]
    assert [next_check(step, 0, 2, 7) for step in (7, 70, 71)] == [8, 71, NEVER]
    assert next_check(7, 100, 1, 7) == NEVER


def test_who_has_come_is_proven_by_the_last_of_the_early_comparisons() -> None:
    last = max(step for step in range(200) if next_check(step - 1, 0, 2, 30) == step)
    assert is_proven(last, 30)
    assert not is_proven(last - 1, 30)


def test_people_are_told_who_what_since_when_and_why() -> None:
    for word in ("w1", "w0, the lowest rank's", "fc.weight", "2 of 9", "step 200", "step 100", "outside the optimizer"):
        assert word in told(FOUND)
    assert "w0 and most others" in told(msgspec.structs.replace(FOUND, majority=True))
    assert "after notify_batch_end()" not in told(FOUND)
    come = msgspec.structs.replace(FOUND, newcomers=True, joined=(190,), equal_step=0)
    assert "w1, which joined after step 190, differs from w0, first in fc.weight" in told(come)
    assert "changed after notify_batch_end(), where a newcomer has got it already" in told(come)
    assert "enumerate()" in told(msgspec.structs.replace(come, equal_step=196))


RATES = (SameValue("0.01", ("w0", "w2")), SameValue("0.05", ("w1",)))


def test_what_differs_first_may_say_what_is_to_be_done_and_then_no_cause_is_guessed() -> None:
    name = (
        "weight, which edl.Optimizer was not given: wrap it; or, if it is each worker's own, call edl.local(optimizer)"
    )
    for found in (FOUND, msgspec.structs.replace(FOUND, at_end=True), msgspec.structs.replace(FOUND, newcomers=True)):
        said = told(msgspec.structs.replace(found, first=name))
        assert f"first in {name} (" in said and said.endswith(")") and "Likely" not in said
        assert causes(msgspec.structs.replace(found, first=name)) == ""


def test_where_a_value_differs_people_are_told_who_has_which() -> None:
    rates = msgspec.structs.replace(FOUND, first="learning rate of group 0", held=RATES, newcomers=True, joined=(120,))
    said = "learning rate of group 0 is 0.01 on w0, w2 and 0.05 on w1, which joined after step 120 (2 of 9 differ)"
    assert said in told(rates)
    assert "edl.register(scheduler=...)" in told(rates)
    own = told(msgspec.structs.replace(rates, newcomers=False))
    assert "such as its loss" in own
    assert "joined" not in own
    registered = msgspec.structs.replace(rates, first="edl.register(scheduler=...).state_dict()['last_epoch']")
    assert "a schedule that is not registered" in told(registered)


def test_at_the_end_a_script_may_have_changed_its_model_by_then() -> None:
    said = told(msgspec.structs.replace(FOUND, at_end=True, equal_step=0))
    assert "differ at the end of their scripts:" in said
    assert "change a copy of it" in said


@pytest.mark.parametrize(
    ("by_rank", "new", "expected"),
    [
        (("abc", "abx"), (False, True), Difference("t2", 1, 3, (1,), 0, False, newcomers=True)),
        (("abx", "abc"), (True, False), Difference("t2", 1, 3, (0,), 1, False, newcomers=True)),
        (("abc", "abx", "abx", "abx"), (False, True, True, True), Difference("t2", 1, 3, (1, 2, 3), 0, False, True)),
        (("abc", "abc", "abx"), (False, True, True), Difference("t2", 1, 3, (2,), 0, True, newcomers=True)),
        (("abc", "xbc", "abx"), (False, False, True), Difference("t0", 2, 3, (1, 2), 0, False)),
        (("abc", "abx"), (True, True), Difference("t2", 1, 3, (1,), 0, False)),  # as where all are old
    ],
)
def test_what_those_have_that_were_there_before_is_right(
    by_rank: tuple[str, ...], new: tuple[bool, ...], expected: Difference
) -> None:
    assert difference(states(*by_rank), new) == expected


def rates(*values: float, weights: str = "") -> list[list[Fingerprint]]:
    """A learning rate of each rank, and a weight."""
    found = [fingerprint_of_value("rate", value) for value in values]
    return [[one, *more] for one, more in zip(found, states(*(weights or "a" * len(found))), strict=True) if one]


def test_what_a_script_has_set_is_told_of_every_rank() -> None:
    found = difference(rates(0.1, 0.2, 0.1))
    assert found is not None
    assert (found.first, found.held) == ("rate", (("0.1", (0, 2)), ("0.2", (1,))))
    assert difference(states("ab", "ac")).held == ()


@pytest.mark.parametrize(
    ("values", "joined", "newcomers"),
    [
        ((0.1, 0.2, 0.1), (0, 500, 0), True),  # long ago: a schedule by epochs shows late
        ((0.1, 0.2, 0.2), (0, 500, 900), True),  # they are more, and both have come later
        ((0.1, 0.1, 0.2), (0, 500, 900), True),
        ((0.2, 0.1, 0.1), (0, 500, 500), True),
        ((0.1, 0.2, 0.1), (0, 0, 500), False),  # those that were there first are not alike
        ((0.1, 0.2, 0.2), (500, 500, 500), False),
    ],
)
def test_what_a_script_has_set_counts_as_the_first_workers_have_it(
    values: tuple[float, ...], joined: tuple[int, ...], newcomers: bool
) -> None:
    found = difference(rates(*values), (False,) * 3, joined)
    assert found is not None
    assert found.newcomers == newcomers
    if newcomers:
        assert found.root == 0


def test_where_the_first_workers_are_not_alike_most_are_right() -> None:
    found = difference(rates(0.1, 0.2, 0.2, 0.2), (False,) * 4, (0, 0, 500, 500))
    assert found is not None
    assert (found.root, found.ranks, found.majority, found.newcomers) == (1, (0,), True, False)
    tied = difference(rates(0.1, 0.2, 0.2), (False,) * 3, (0, 0, 500))
    assert tied is not None
    assert (tied.root, tied.majority) == (1, True), "the lowest of the first ones would be 0"


def test_weights_of_workers_that_were_equal_for_long_are_nobodys_fault() -> None:
    found = difference(states("abc", "abx"), (False, False), (0, 500))
    assert found is not None
    assert not found.newcomers


def test_what_one_has_and_another_has_not_hides_nothing_that_follows() -> None:
    one = [Fingerprint("a", 1), Fingerprint("extra", 5), Fingerprint("b", 2), Fingerprint("b", 3)]
    other = [Fingerprint("a", 1), Fingerprint("b", 2), Fingerprint("b", 3)]
    found = difference([other, one, other])
    assert found is not None
    assert (found.first, found.differing, found.ranks) == ("extra", 1, (1,))


@pytest.mark.parametrize("size", [1, SKETCHED, 2 * SKETCHED, 5 * SKETCHED + 3])
def test_a_sketch_differs_where_its_state_does_and_names_the_place(size: int) -> None:
    state = [Fingerprint(f"t{number}", number) for number in range(size)]
    assert len(sketch(state)) <= 2 * SKETCHED
    for number in (0, size // 2, size - 1):
        other = [*state]
        other[number] = Fingerprint(f"t{number}", 1 << 40)
        found = difference([sketch(state), sketch(other)])
        assert found is not None
        assert found.differing == 1
        if size <= 2 * SKETCHED:
            assert found.first == f"t{number}"
    if size > 2 * SKETCHED:
        last = sketch(state)[-2].name
        assert last.startswith("one of t")
        assert " to t" in last


@pytest.mark.parametrize(
    ("newcomers", "equal_step", "persists", "policy", "expected"),
    [
        (True, 0, False, OnDivergence.FAIL, Consequence.HEAL),  # it may be how it got its state
        (True, 0, True, OnDivergence.FAIL, Consequence.PART),
        (True, 100, False, OnDivergence.FAIL, Consequence.PART),
        (False, 0, False, OnDivergence.FAIL, Consequence.FAIL),
        (False, 100, False, OnDivergence.HEAL, Consequence.HEAL),
        (True, 100, False, OnDivergence.HEAL, Consequence.HEAL),
        (True, 100, True, OnDivergence.HEAL, Consequence.PART),
        (False, 100, True, OnDivergence.HEAL, Consequence.FAIL),
    ],
)
def test_newcomers_are_given_the_state_again_once_and_then_they_go(
    newcomers: bool, equal_step: int, persists: bool, policy: OnDivergence, expected: Consequence
) -> None:
    found = msgspec.structs.replace(FOUND, newcomers=newcomers, persists=persists, equal_step=equal_step)
    assert outcome(found, policy) is expected
    assert outcome(msgspec.structs.replace(found, newcomers=False, at_end=True), policy) is Consequence.FAIL


@pytest.mark.parametrize(
    ("ranks", "plain", "new", "compute", "expected"),
    [
        ("aab", False, False, 0.01, True),
        ("aab", False, False, 0.0, False),  # it is not asked for
        ("aab", True, False, 0.01, False),  # a script has set it
        ("aab", False, True, 0.01, False),  # it may be how the newcomer got its state
        ("ab", False, False, 0.01, False),  # either may be wrong
    ],
)
def test_what_differs_on_few_counts_as_an_error_of_hardware_where_it_is_looked_for(
    ranks: str, plain: bool, new: bool, compute: float, expected: bool
) -> None:
    states = [[Fingerprint("rate", ord(one), one if plain else "")] for one in ranks]
    found = difference(states, [new and one == "b" for one in ranks])
    assert found is not None
    assert is_corrupt(found, compute) is expected


@pytest.mark.parametrize("policy", list(OnDivergence))
def test_who_is_wrong_goes_and_where_that_is_not_known_the_job_goes_on(policy: OnDivergence) -> None:
    found = msgspec.structs.replace(FOUND, corrupt=True, majority=True)
    assert outcome(found, policy) is Consequence.PART
    assert outcome(msgspec.structs.replace(found, majority=False), policy) is Consequence.TELL


# --------------------------------------------------------------------------------------------------- their leader


def training(on_divergence: OnDivergence, minimum: int = 1) -> Job:
    job = Job()
    for worker in ("w0", "w1"):
        identity = Identity(worker, "host", "127.0.0.1", 100, 101)
        job_policy = JobPolicy(checking=Checking(50, on_divergence))
        job.feed(Register(identity, 2, minimum, 0, job_policy=job_policy))
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1)
    return job


def test_the_job_fails_with_the_reason() -> None:
    job = training(OnDivergence.FAIL)
    job.see("w1", Phase.TRAINING, 1, 200, diverged=FOUND)
    job.see("w0", Phase.TRAINING, 1, 200, diverged=FOUND)
    assert job.kinds()[-2:] == ["diverged", "job_failed"]
    assert job.machine.record.state is JobState.FAILED
    assert job.machine.record.reason == job.orders("w0").reason == told(FOUND)
    details = job.told[-2].fact.details()
    assert (details["workers"], details["first"], details["action"]) == (("w1",), "fc.weight", "fail")


def test_a_job_that_heals_goes_on_and_tells_it_once_under_whichever_leader() -> None:
    job = training(OnDivergence.HEAL)
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 200, diverged=FOUND)
    job.machine = JobMachine(job.machine.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1"})))
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 201, diverged=FOUND)
    assert job.kinds().count("diverged") == 1
    assert job.machine.record.state is JobState.RUNNING
    later = msgspec.structs.replace(FOUND, step=300)
    job.see("w0", Phase.TRAINING, 1, 300, diverged=later)
    job.see("w1", Phase.TRAINING, 1, 300, diverged=later)
    assert job.kinds().count("diverged") == 2


def test_what_does_not_heal_fails_the_job_all_the_same() -> None:
    job = training(OnDivergence.HEAL)
    job.see("w0", Phase.TRAINING, 1, 200, diverged=FOUND)
    job.see("w0", Phase.TRAINING, 1, 200, diverged=msgspec.structs.replace(FOUND, persists=True))
    assert job.kinds()[-3:] == ["diverged", "diverged", "job_failed"]


NEW = msgspec.structs.replace(FOUND, newcomers=True, joined=(190,), majority=True)


def test_newcomers_that_differ_go_and_the_others_train_on() -> None:
    job = training(OnDivergence.FAIL)
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 200, diverged=NEW)
    (lost,) = [event.fact.details() for event in job.told if event.fact.kind is Kind.WORKER_LOST]
    assert (lost["worker"], lost["cause"], lost["reason"]) == ("w1", "differed", told(NEW))
    assert job.machine.record.state is not JobState.FAILED
    assert job.orders("w1").reason.endswith(told(NEW))
    planned = job.orders("w0").assignment
    assert planned is not None
    assert planned.place.size == 1


PART = msgspec.structs.replace(
    FOUND, step=201, first="the part of virtual worker 3", corrupt=True, virtual=3, majority=True
)


def test_a_worker_that_computed_wrongly_goes_and_others_may_come() -> None:
    job = training(OnDivergence.FAIL)
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 200, diverged=PART)
    (lost,) = [event.fact.details() for event in job.told if event.fact.kind is Kind.WORKER_LOST]
    assert (lost["worker"], lost["cause"]) == ("w1", "corrupted")
    (corrupted,) = [event.fact.details() for event in job.told if event.fact.kind is Kind.CORRUPTED]
    assert {name: corrupted[name] for name in ("worker", "certain", "after_step", "virtual_worker")} == {
        "worker": "w1", "certain": True, "after_step": 200, "virtual_worker": 3,
    }  # fmt: skip
    assert "w1 computed wrongly, as a third worker has shown" in corrupted["told"]
    assert not job.kinds().count("diverged")
    assert not job.machine.record.trials.parted


def test_a_state_that_only_one_has_is_told_as_both() -> None:
    job = training(OnDivergence.FAIL)
    job.see("w0", Phase.TRAINING, 1, 200, diverged=msgspec.structs.replace(FOUND, corrupt=True, majority=True))
    assert (job.kinds().count("diverged"), job.kinds().count("corrupted")) == (1, 1)
    assert job.machine.record.state is not JobState.FAILED


def test_of_two_workers_both_are_told_and_the_job_goes_on() -> None:
    job = training(OnDivergence.FAIL)
    both = msgspec.structs.replace(PART, majority=False, workers=("w0", "w1"))
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 200, diverged=both)
    told_of = [event.fact.details() for event in job.told if event.fact.kind is Kind.CORRUPTED]
    assert [(one["worker"], one["certain"]) for one in told_of] == [("w0", False), ("w1", False)]
    assert job.machine.record.state is JobState.RUNNING
    assert not job.kinds().count("worker_lost")


def test_where_too_few_would_be_left_the_job_fails_with_the_reason() -> None:
    job = training(OnDivergence.FAIL, minimum=2)
    job.see("w0", Phase.TRAINING, 1, 200, diverged=NEW)
    assert job.machine.record.state is JobState.FAILED
    assert job.machine.record.reason == told(NEW)
    assert [event.fact.details()["action"] for event in job.told if event.fact.kind is Kind.DIVERGED] == ["fail"]


def test_a_failure_repeats_what_was_found_first() -> None:
    job = training(OnDivergence.FAIL)
    first = msgspec.structs.replace(NEW, equal_step=0, first="learning rate of group 0", held=RATES)
    job.see("w0", Phase.TRAINING, 1, 200, diverged=first)
    job.machine = JobMachine(job.machine.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1"})))
    later = msgspec.structs.replace(FOUND, step=300)
    job.see("w0", Phase.TRAINING, 1, 300, diverged=later)
    assert job.machine.record.state is JobState.FAILED
    assert job.machine.record.reason == f"{told(later)}. Before that: {told(first)}"


def test_every_member_of_a_ring_is_told_the_same_of_when_to_compare() -> None:
    job = Job()
    for worker, every in (("w0", 50), ("w1", 70)):  # only the first worker's settings count
        identity = Identity(worker, "host", "127.0.0.1", 100, 101)
        job.feed(Register(identity, 2, 1, 0, job_policy=JobPolicy(checking=Checking(every))))
    plans = [job.orders(worker).assignment for worker in ("w0", "w1")]
    assert [plan.checking.every for plan in plans if plan is not None] == [50, 50]


# ----------------------------------------------------------------------------------------------- the ends of scripts


def ends(job: Job, worker: str, weight: int, step: int = 200, updates: int = 0, joined: int = 0) -> None:
    state = final(step, [Fingerprint("fc.weight", weight)], updates)
    job.see(worker, Phase.DONE, 1, step, final=state, joined=joined)


def test_scripts_that_end_in_one_state_finish_the_job() -> None:
    job = training(OnDivergence.FAIL)
    ends(job, "w0", 7)
    assert job.machine.record.state is not JobState.FINISHED
    ends(job, "w1", 7)
    assert job.machine.record.state is JobState.FINISHED
    assert "diverged" not in job.kinds()


def test_scripts_that_end_in_states_that_differ_do_not() -> None:
    job = training(OnDivergence.HEAL)
    ends(job, "w0", 7)
    job.machine = JobMachine(job.machine.record, LeadTimes.of(10.0))  # its leader dies with its script
    job.feed(TookOver(frozenset({"w1"})))
    ends(job, "w1", 8)
    record = job.machine.record
    assert (record.state, record.ending.failed_by) == (JobState.FAILED, FailedBy.DIVERGENCE)
    assert job.kinds()[-2:] == ["diverged", "job_failed"]
    assert "w1 differs from w0, the lowest rank's, first in fc.weight (only that)" in record.reason
    assert "after the last step" in record.reason


def test_scripts_that_end_after_different_steps_do_not() -> None:
    job = training(OnDivergence.FAIL)
    ends(job, "w0", 7, 150)
    ends(job, "w1", 8, 200)
    assert job.machine.record.state is JobState.FAILED
    assert "the number of steps is 150 on w0 and 200 on w1 (2 of 3 differ)" in job.machine.record.reason
    assert "edl.step()" in job.machine.record.reason


@pytest.mark.parametrize("leader_dies", [False, True])
def test_a_newcomer_that_ends_in_another_state_says_nothing_against_the_others(leader_dies: bool) -> None:
    job = training(OnDivergence.HEAL)
    ends(job, "w1", 8, joined=180)
    if leader_dies:
        job.machine = JobMachine(job.machine.record, LeadTimes.of(10.0))
        job.feed(TookOver(frozenset({"w0"})))
    ends(job, "w0", 7)
    assert job.machine.record.state is JobState.FINISHED
    assert job.kinds()[-2:] == ["diverged", "job_finished"]
    (event,) = [event.fact.details() for event in job.told if event.fact.kind is Kind.DIVERGED]
    assert (event["action"], event["workers"], event["like"]) == ("part", ("w1",), "w0")
    assert "w1, which joined after step 180, differs from w0" in event["told"]


def test_a_newcomer_that_ends_after_another_step_does() -> None:
    job = training(OnDivergence.FAIL)
    ends(job, "w0", 7, 200)
    ends(job, "w1", 8, 210, joined=180)
    assert job.machine.record.state is JobState.FAILED


def test_newcomers_that_end_in_many_states_hide_no_other_that_differs() -> None:
    finals = ended_in((), "w0", final(9, [Fingerprint("a", 0)]))
    for number in range(20):
        finals = ended_in(finals, f"new {number}", final(9, [Fingerprint("a", 1 + number % 10)]), 5)
    found = at_end(finals, 3, 9)
    assert found is not None and found.newcomers and set(found.joined) == {5}
    finals = ended_in(finals, "w1", final(9, [Fingerprint("a", 99)]))
    found = at_end(finals, 3, 9)
    assert found is not None and not found.newcomers


def test_scripts_that_make_other_numbers_of_updates_after_the_last_step_do_not() -> None:
    """What is in the weights after the last step of all data is not compared."""
    job = training(OnDivergence.FAIL)
    ends(job, "w0", 7, updates=1)
    ends(job, "w1", 7)
    assert job.machine.record.state is JobState.FAILED
    assert "the number of updates after the last step is 1 on w0 and 0 on w1 (only that)" in job.machine.record.reason
    assert "catches an exception" in job.machine.record.reason


def test_a_newcomer_that_makes_another_number_of_updates_after_the_last_step_fails_the_job_too() -> None:
    job = training(OnDivergence.FAIL)
    ends(job, "w0", 7, updates=1)
    ends(job, "w1", 8, joined=180)
    assert job.machine.record.state is JobState.FAILED


def test_what_is_not_known_of_a_workers_end_is_not_compared() -> None:
    job = training(OnDivergence.FAIL)
    ends(job, "w0", 7)
    job.see("w1", Phase.DONE, 1, 200)
    assert job.machine.record.state is JobState.FINISHED


def test_of_many_workers_only_a_few_states_are_kept() -> None:
    finals: tuple[EndState, ...] = ()
    for number in range(100):
        finals = ended_in(finals, f"w{number}", final(9, [Fingerprint("a", number % 10)]))
    assert len(finals) == 4
    assert finals[0].workers == tuple(f"w{number}" for number in range(0, 100, 10))
    found = at_end(finals, 3, 9)
    assert found is not None
    assert (found.generation, found.step, found.at_end, found.root) == (3, 9, True, "w0")
    assert at_end(finals[:1], 3, 9) is None
    assert at_end((), 3, 9) is None
