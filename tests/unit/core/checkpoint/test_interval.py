"""How often a job saves itself where it chooses that."""

from __future__ import annotations

import math

import pytest

from edl.core.checkpoint.due_times import COSTS_KEPT, LONGEST_S, MOST_S, chosen, cost, interval_of, mean_fault_s
from edl.core.job.leader_machine import new_record
from edl.protocol.checkpoint_record import Auto, Checkpointing, Cost, Resumed
from edl.protocol.job_policy import JobPolicy
from edl.protocol.record import changed

AUTO = Auto()


def of(seconds: float, times: int = COSTS_KEPT, took_s: float = 0.5) -> tuple[Cost, ...]:
    return (Cost(0.001, seconds, took_s),) * times


def test_before_one_is_durable_it_is_the_shortest() -> None:
    assert chosen(AUTO, (), 3600.0).seconds == AUTO.least_s


def test_it_is_youngs_where_nothing_else_binds() -> None:
    found = chosen(AUTO, of(0.2), 3600.0)
    assert found.seconds == pytest.approx(math.sqrt(2 * 3600.0 * 0.2))
    assert found.why == "as often as faults ask for: one costs 200 ms, and one fault came in 60 min"


def test_the_overhead_that_is_allowed_is_never_exceeded() -> None:
    found = chosen(AUTO, of(10.0), 3600.0)
    assert found.seconds == pytest.approx(1000.0)
    assert found.why.startswith("as more would cost over 1% of the time: one costs 10 s")
    assert chosen(Auto(overhead=0.5), of(10.0), 3600.0).seconds == pytest.approx(math.sqrt(2 * 3600.0 * 10.0))


def test_it_has_bounds_on_both_sides() -> None:
    assert chosen(AUTO, of(0.0), 3600.0).seconds == AUTO.least_s
    assert chosen(AUTO, of(5.0), 1e9).seconds == MOST_S
    assert chosen(AUTO, of(1e6), 1e9).seconds == LONGEST_S


def test_what_takes_long_to_write_leaves_the_storage_half_of_the_time() -> None:
    assert chosen(AUTO, of(0.0, took_s=40.0), 3600.0).seconds == 80.0


def test_one_that_fell_together_with_an_evaluation_does_not_count() -> None:
    assert cost([Cost(0.002, lost, 1.0) for lost in (0.1, 0.1, 30.0, 0.1, -0.2)]) == 0.1


def test_where_nothing_was_lost_it_is_for_how_long_trainers_stood() -> None:
    assert cost([Cost(0.02, -0.4, 1.0)] * 3) == 0.02
    assert cost([Cost(0.02, None, None)] * 3) == 0.02


def test_faults_and_the_time_trained_count_over_all_lives() -> None:
    assert mean_fault_s(AUTO, 0.0, 0) == AUTO.fault_s
    assert mean_fault_s(AUTO, 3600.0, 3) == 1800.0
    record = new_record("j", 0.0)
    policy = JobPolicy(checkpointing=Checkpointing("/c", life=3, auto=AUTO))
    record = changed(record, job_policy=policy, losses=1, save_costs=of(0.5), resumed=Resumed(900, 2, "/c/j/x"))
    found = interval_of(record, 100, 36.0)  # 1,000 steps of 36 s, and an hour; two lives before, and one worker
    assert found is not None
    assert found.seconds == pytest.approx(math.sqrt(2 * (36_000 + 3600) / 4 * 0.5))


def test_a_job_that_is_told_how_often_does_not_choose() -> None:
    record = changed(
        new_record("j", 0.0), job_policy=JobPolicy(checkpointing=Checkpointing("/c", every_s=30.0)), save_costs=of(0.5)
    )
    assert interval_of(record, 100, 0.1) is None
