"""Simulated jobs that leave a host while they train."""

from __future__ import annotations

from functools import partial

import pytest
from mutants import Calm

from edl.protocol.data_nouns import DataSpec
from edl.protocol.record import JobState
from tests.model import Moment, Planned, SimFault, SimJob

DATA = DataSpec(total=3000, epochs=1, batch=2)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_calm_job_leaves_its_host_and_loses_no_step(seed: int, spread: bool) -> None:
    job = Calm(DATA, seed=seed, workers=1 + seed % 4, prepares=1.0, sends=1.0, spread=spread)
    job.after(0.3, lambda: job.migrations.begin(slots=4, starts=True))
    job.run()
    assert [one.failure for one in job.durable.migrated] == [""], job.story("not moved")
    assert job.durable.state is JobState.FINISHED
    assert job.migrations.home == "host1"
    assert not any(worker.host == "host0" for worker in job.workers.values() if worker.id in job.durable.roster)
    assert job.durable.target == 1 + seed % 4


@pytest.mark.parametrize("seed", range(4))
def test_where_no_worker_ever_comes_the_job_stays_and_says_so(seed: int) -> None:
    job = Calm(DATA, seed=seed, workers=2)
    job.after(0.3, lambda: job.migrations.begin(slots=2, starts=False))
    job.run()
    assert [one.failure[:34] for one in job.durable.migrated] == ["0 of 2 workers have come to host1 "], job.story("?")
    assert job.durable.state is JobState.FINISHED
    assert len(job.workers) == 2


@pytest.mark.parametrize(
    "fault", [SimFault.KILL, SimFault.VANISH, SimFault.LEAVE, SimFault.CRASH_LEADER, SimFault.CHANGE_LEADER]
)
@pytest.mark.parametrize("moment", [Moment.BOOTING, Moment.READY, Moment.SWITCHING, Moment.LEAVING, Moment.DECIDING])
@pytest.mark.parametrize("seed", range(3))
def test_after_a_fault_at_any_moment_the_host_is_left_all_the_same(fault: SimFault, moment: Moment, seed: int) -> None:
    job = SimJob(DATA, seed=seed, workers=4, prepares=1.0, sends=1.0, spread=seed == 1)
    job.after(0.3, partial(job.migrations.begin, slots=8, starts=True, within_s=3.0))
    job.after(0.31, partial(job.plan, [Planned(fault, moment, 1 + seed % 2)]))
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert [one.failure for one in job.durable.migrated] == [""], job.story("not moved")
