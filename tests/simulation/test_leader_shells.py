"""Simulated jobs whose leader is the production shell: nothing is wrong with them, and wrong shells are noticed."""

from __future__ import annotations

import asyncio

import pytest
from mutants import Mutant, Patch, expect_noticed

from edl.core.job.commit import Commit, GiveAnswer, Writing, Written
from edl.core.job.leader_machine import JobMachine
from edl.core.job.orders import OrderBook
from edl.daemon.leader_shell import Leader
from edl.daemon.record_store import RecordStore
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Ack
from tests.model import Planned, SimFault
from tests.model.leader_shells import ShellJob
from tests.model.scenario import scenario

SEEDS = 300


def shell_job(seed: int) -> ShellJob:
    job = scenario(seed, ShellJob)
    assert isinstance(job, ShellJob)
    return job


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_no_invariant_breaks(first: int) -> None:
    for seed in range(first, first + 10):
        shell_job(seed).run()


@pytest.mark.parametrize("seed", [36, 117, 467, 1299])
def test_what_once_was_wrong_is_right(seed: int) -> None:
    """In 1299 a leader whose job had failed looked again and again at what stayed due."""
    shell_job(seed).run()


def after_an_outage(seed: int) -> ShellJob:
    """All sessions end in an outage, and all daemons come back."""
    job = ShellJob(DataSpec(total=1200, epochs=1, batch=2), seed=seed, workers=3)
    job.plan([Planned(SimFault.AWAY, 0.1)])
    return job


def looks_at_what_is_due_though_the_job_is_over(patch: Patch) -> None:
    patch.setattr(
        JobMachine, "wake_at", property(lambda machine: min(machine._switching.wake_at, machine._waits.until))
    )


def tells_before_it_has_written(patch: Patch) -> None:
    outcome = RecordStore._outcome

    async def early(store, command):
        if not isinstance(command, Commit):
            return await outcome(store, command)
        asyncio.get_running_loop().create_task(outcome(store, command))
        return Written(command.version + 1)

    patch.setattr(RecordStore, "_outcome", early)


def writes_no_events(patch: Patch) -> None:
    ops = RecordStore._ops
    patch.setattr(RecordStore, "_ops", lambda store, commit: ops(store, commit)[:1])


def calls_no_roll(patch: Patch) -> None:
    async def never(_leader, _machine, _due):
        await asyncio.Event().wait()

    patch.setattr(Leader, "_call_roll", never)


def believes_a_coordinator_that_has_just_come_back(patch: Patch) -> None:
    patch.setattr(Leader, "_doubt_s", lambda _: 0.0)
    patch.setattr(Leader, "_doubt_of_s", lambda _leader, _worker: 0.0)


def leads_no_more_after_a_write_without_an_answer(patch: Patch) -> None:
    patch.setattr(Leader, "in_doubt", property(lambda _: False, lambda _leader, _value: None), raising=False)


def gives_out_the_orders_of_the_first_write(patch: Patch) -> None:
    publish = Leader._publish

    def only_once(leader, book: OrderBook, *, pressing):
        publish(leader, leader._book or book, pressing=pressing)

    patch.setattr(Leader, "_publish", only_once)


def wakes_no_daemon(patch: Patch) -> None:
    publish = Leader._publish
    patch.setattr(Leader, "_publish", lambda leader, book, *, pressing: publish(leader, book, pressing=False))


def forgets_a_caller(patch: Patch) -> None:
    tell = Leader.tell

    def tells_all_but_answers(leader, said):
        if not isinstance(said, GiveAnswer) or not isinstance(said.reply, Ack):
            tell(leader, said)

    patch.setattr(Leader, "tell", tells_all_but_answers)


def declares_rest_though_it_writes(patch: Patch) -> None:
    patch.setattr(Writing, "_unrest", lambda _: [])


MUTANTS = [
    (forgets_a_caller, {"I12"}),
    (declares_rest_though_it_writes, {"rest"}),
    (looks_at_what_is_due_though_the_job_is_over, {"I12"}),
    (tells_before_it_has_written, {"I9", "I1"}),
    (writes_no_events, {"events"}),
    (calls_no_roll, {"I12"}),
    (leads_no_more_after_a_write_without_an_answer, {"I12"}),
    (gives_out_the_orders_of_the_first_write, {"I12"}),
    (wakes_no_daemon, {"pace", "I12"}),
]


@pytest.mark.parametrize(("mutant", "names"), MUTANTS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_wrong_shell_is_noticed(mutant: Mutant, names: set[str], monkeypatch: Patch) -> None:
    expect_noticed(mutant, shell_job, names, SEEDS, monkeypatch)


def test_a_leader_that_believes_a_coordinator_which_has_just_come_back_is_noticed(monkeypatch: Patch) -> None:
    expect_noticed(believes_a_coordinator_that_has_just_come_back, after_an_outage, {"I11"}, 40, monkeypatch)
