"""What policies are told of live jobs: of what their leaders measure, and of how their batch comes about."""

from __future__ import annotations

import pytest

from edl.cluster.analyzer.analyzer import Analyzer
from edl.cluster.queue.entries import JobEntry, Submission
from edl.cluster.queue.inputs import JobLook
from edl.cluster.queue.speeds import FittedSpeeds
from edl.cluster.views import Aim, Rates


def _heard(*looks: JobLook, batch_range: tuple[int, int] | None = None, aim: Aim = Aim.GIVEN) -> Rates:
    speeds = FittedSpeeds(Analyzer())
    job = JobEntry(Submission("a", ("train",), "/", "ann", 0.0, max_np=8, batch_range=batch_range))
    for look in looks:
        speeds.hear(job, look)
    return speeds.speed(job).rates(8, 8, aim)


def _look(size: int, batch: int, step_s: float, *, grows: bool) -> JobLook:
    return JobLook("running", size=size, step=9, batch=batch, grows=grows, step_s=step_s)


def test_where_the_batch_grows_with_the_workers_each_worker_adds_as_much() -> None:
    """Its steps take as long at any size: four workers pass over four times the data."""
    looks = [_look(size, 32 * size, 0.1 + 0.001 * size, grows=True) for size in (1, 2)]
    rates = _heard(*looks)
    assert rates.progress[3] / rates.progress[0] == pytest.approx(4, rel=0.15)
    assert rates.batch.tolist() == [32 * size for size in range(1, 9)]


def test_where_the_batch_is_one_for_all_more_workers_do_not_pass_over_more_data() -> None:
    looks = [_look(size, 64, 0.1 + 0.001 * size, grows=False) for size in (1, 2)]
    rates = _heard(*looks)
    assert rates.progress[3] / rates.progress[0] < 2
    assert max(rates.batch.tolist()) == 64


def test_a_batch_that_policies_may_choose_is_chosen_within_its_range() -> None:
    rates = _heard(_look(1, 32, 0.1, grows=True), batch_range=(32, 64))
    assert all(32 <= batch <= 64 for batch in rates.batch.tolist())


def test_one_worker_makes_one_pass_of_a_larger_batch_as_scripts_do() -> None:
    """Two passes, which would tell of the noise, would halve its speed here."""
    looks = [_look(1, batch, 0.1, grows=False) for batch in (32, 128)]
    rates = _heard(*looks, batch_range=(32, 128), aim=Aim.THROUGHPUT)
    assert rates.batch[0] == 128
    assert rates.throughput[0] == pytest.approx(1280, rel=0.2)
