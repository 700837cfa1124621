"""Whole simulated jobs under planned and random faults, over many seeds; a failing seed prints its transcript.

EDL_SEEDS sets how many seeds are tried; the default keeps the suite quick.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from edl.protocol.data import DataSpec
from edl.protocol.job import JobState
from edl.testing import Fault, SimJob

SEEDS = int(os.environ.get("EDL_SEEDS", "60"))


def expect_every_sample_once(job: SimJob) -> None:
    expected = Counter({(epoch, at): 1 for epoch in range(job.spec.epochs) for at in range(job.spec.total)})
    lost, repeated = expected - job.trained, job.trained - expected
    assert not lost, job.story(f"lost {sorted(lost)[:9]}")
    assert not repeated, job.story(f"repeated {sorted(repeated)[:9]}")


def quiet(job: SimJob) -> None:
    """Nothing happens."""


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("total", [1, 7, 640, 1001])
def test_a_quiet_job_trains_every_sample_once(workers: int, total: int) -> None:
    job = SimJob(DataSpec(total=total, epochs=3, batch=8), seed=1, workers=workers)
    job.run(quiet)
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    expect_every_sample_once(job)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults_lose_and_repeat_nothing(seed: int) -> None:
    job = SimJob(DataSpec(total=2000, epochs=2, batch=4, whole_epochs=bool(seed % 2)), seed=seed, workers=3)
    rates = {Fault.JOIN: 0.02, Fault.LEAVE: 0.01, Fault.KILL: 0.01, Fault.CHANGE_LEADER: 0.02}

    def plan(job: SimJob) -> None:
        for fault, rate in rates.items():
            if job.random.random() < rate:
                job.inflict(fault)

    job.run(plan)
    if job.durable.state is JobState.FAILED:  # it may: all who were left died or left before a newcomer was ready
        reasons = "workers are left", "before their data", "nobody is left who has the model's state"
        assert any(reason in job.durable.reason for reason in reasons), job.story("odd end")
        return
    expect_every_sample_once(job)
