"""Another batch is asked for while a job trains."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import LONG, SPEC, Job

from edl.core.job.job_report import status_of
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Refuse, TookOver
from edl.core.job.leader_machine import JobMachine
from edl.facts import BatchAsked
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import AskBatch, AskStop, Phase


class Training(Job):
    """Two workers at step 10."""

    def __init__(self, data: DataSpec | None = LONG) -> None:
        super().__init__(np=2)
        self.data = data
        for worker in ("a", "b"):
            self.join(worker)
        for step in (0, 10):
            self.make(step)

    def make(self, step: int, **more: object) -> None:
        for worker in ("a", "b"):
            self.see(worker, Phase.TRAINING, generation=1, step=step, data=self.data, **more)

    def ask(self, samples: int) -> str:
        """Why not; empty when it is taken."""
        return next((one.reason for one in self.feed(AskBatch(samples)) if isinstance(one, Refuse)), "")

    @property
    def batch(self) -> int:
        assert self.machine.ledger is not None
        return self.machine.ledger.batch

    def trained_in(self, step: int) -> int:
        assert self.machine.ledger is not None
        leases = [lease for worker in ("a", "b") for lease in self.machine.ledger.leases(worker)]
        return sum(lease.share(step) for lease in leases if lease.after_step < step <= lease.until_step)


def test_what_is_beyond_the_mark_is_of_the_batch_asked_for() -> None:
    job = Training()
    assert job.ask(64) == ""
    asked = [one.fact for one in job.told if isinstance(one.fact, BatchAsked)]
    assert [(one.before, one.batch, one.workers) for one in asked] == [(20, 64, 2)]
    mark = job.machine.record.sizing.rebatch
    assert mark is not None
    job.make(11, marked=(mark.number, mark.mark))
    assert [job.trained_in(mark.mark), job.trained_in(mark.mark + 1)] == [20, 64]
    status = status_of(job.machine, 1, "a", {})
    assert (status.batching, status.batch) == ("asked", 64)


def test_it_is_asked_for_twice_and_told_once() -> None:
    job = Training()
    assert [job.ask(64), job.ask(64)] == ["", ""]
    assert sum(isinstance(one.fact, BatchAsked) for one in job.told) == 1
    assert job.ask(32) == ""
    assert [one.fact.before for one in job.told if isinstance(one.fact, BatchAsked)] == [20, 64]


def test_it_stays_with_another_leader_and_another_size() -> None:
    job = Training()
    job.ask(64)
    machine = JobMachine(job.machine.record, LeadTimes.of(10.0))
    machine.handle(TookOver(frozenset({"a", "b"})), 100.0)
    assert machine.ledger is not None and machine.ledger.batch == 64
    job.machine = machine
    job.make(11)
    job.join("c")
    job.see("c", Phase.READY, data=LONG)
    plan = job.machine.record.plan
    if plan is None:  # the mark comes first
        mark = job.machine.record.sizing.rebatch
        assert mark is not None
        job.make(12, marked=(mark.number, mark.mark))
        plan = job.machine.record.plan
    assert plan is not None and plan.ledger is not None
    assert sum(member.batch for member in plan.ledger.members) == 64


@pytest.mark.parametrize(
    ("data", "samples", "reason"),
    [
        (LONG, 1, "each needs a sample in each step: ask for 2 at least"),
        (msgspec.structs.replace(SPEC, by_sample=True), 64, "its script cuts batches itself"),
        (None, 64, "it has read no samples of edl's"),
    ],
    ids=["too few", "by sample", "own data"],
)
def test_what_cannot_be_is_refused_with_the_remedy(data: DataSpec | None, samples: int, reason: str) -> None:
    job = Training(data)
    assert reason in job.ask(samples)
    assert job.machine.record.sizing.asked_batch == 0


def test_a_job_that_is_over_has_no_other_batch() -> None:
    job = Training()
    job.feed(AskStop("enough"))
    assert job.ask(64).startswith("the job is over: enough")
