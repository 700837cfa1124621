"""Workers whose states differ: who from whom, and what their leader makes of it (I15)."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import Job

from edl.core.job.inputs import TookOver
from edl.core.job.lead_times import LeadTimes
from edl.core.job.machine import JobMachine
from edl.core.worker.divergence import Difference, difference, heals, next_check, told
from edl.core.worker.moves import NEVER
from edl.protocol.divergence import Checking, Divergence, Fingerprint, OnDivergence
from edl.protocol.job import Identity, JobState
from edl.protocol.job_policy import JobPolicy
from edl.protocol.messages import Phase, Register

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
    assert [next_check(step, 100, 2) for step in (0, 1, 99, 100, 101)] == [100, 100, 100, 200, 200]
    assert next_check(7, 0, 2) == next_check(7, 100, 1) == NEVER


def test_people_are_told_who_what_since_when_and_why() -> None:
    for word in ("w1", "w0, the lowest rank's", "fc.weight", "2 of 9", "step 200", "step 100", "outside the optimizer"):
        assert word in told(FOUND)
    assert "w0 and most others" in told(msgspec.structs.replace(FOUND, majority=True))
    assert "after notify_batch_end()" not in told(FOUND)
    come = told(msgspec.structs.replace(FOUND, newcomers=True))
    assert "w1, just come, from w0, first in fc.weight" in come
    assert "changed after notify_batch_end(), where a newcomer has got it already" in come


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


@pytest.mark.parametrize(
    ("newcomers", "persists", "policy", "goes_on"),
    [
        (True, False, OnDivergence.FAIL, True),
        (True, True, OnDivergence.FAIL, False),
        (False, False, OnDivergence.FAIL, False),
        (False, False, OnDivergence.HEAL, True),
        (True, True, OnDivergence.HEAL, False),
    ],
)
def test_newcomers_are_given_the_state_again_whatever_the_policy(
    newcomers: bool, persists: bool, policy: OnDivergence, goes_on: bool
) -> None:
    found = msgspec.structs.replace(FOUND, newcomers=newcomers, persists=persists)
    assert heals(found, policy) == goes_on


# --------------------------------------------------------------------------------------------------- their leader


def training(on_divergence: OnDivergence) -> Job:
    job = Job()
    for worker in ("w0", "w1"):
        identity = Identity(worker, "host", "127.0.0.1", 100, 101)
        job_policy = JobPolicy(checking=Checking(50, on_divergence))
        job.feed(Register(identity, 2, 1, 0, job_policy=job_policy))
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


def test_every_member_of_a_ring_is_told_the_same_of_when_to_compare() -> None:
    job = Job()
    for worker, every in (("w0", 50), ("w1", 70)):  # only the first worker's settings count
        identity = Identity(worker, "host", "127.0.0.1", 100, 101)
        job.feed(Register(identity, 2, 1, 0, job_policy=JobPolicy(checking=Checking(every))))
    plans = [job.orders(worker).assignment for worker in ("w0", "w1")]
    assert [plan.checking.every for plan in plans if plan is not None] == [50, 50]
