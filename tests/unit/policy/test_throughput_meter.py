"""What each size is measured at."""

from __future__ import annotations

from edl.policy.throughput_meter import SETTLE_STEPS, WINDOW_S, Meter, Seated, WorkerTimes
from edl.protocol.tally import Rate, Usage


def walk(meter: Meter, generation: int, size: int, began: tuple[float, int], seconds: int, steps_s: int) -> None:
    at, step = began
    for second in range(seconds + 1):
        now = step + second * steps_s
        meter.look(generation, size, (at + second, now, now * 10 * size))


def test_a_rate_leaves_out_what_a_switch_took() -> None:
    meter = Meter()
    walk(meter, 1, 2, (0.0, 0), 10, 5)
    present = meter.present
    assert present == Rate(2, 45, 900, 9.0)  # the first second's steps are not among them
    assert SETTLE_STEPS <= 5
    assert present.samples_s == 100 and present.step_s == 0.2


def test_sizes_are_known_by_their_newest_visit() -> None:
    meter = Meter((Rate(1, 50, 500, 10.0),))
    walk(meter, 1, 2, (0.0, 0), 10, 5)
    walk(meter, 2, 3, (20.0, 60), 10, 4)
    walk(meter, 3, 2, (40.0, 110), 1, 5)  # too short to count
    assert [(rate.size, rate.batches) for rate in meter.rates] == [(1, 50), (2, 45), (3, 36)]
    walk(meter, 3, 2, (42.0, 120), 10, 2)
    assert meter.rates[1].batches < 45


def test_what_is_old_is_forgotten() -> None:
    meter = Meter()
    walk(meter, 1, 1, (0.0, 0), 100, 5)
    walk(meter, 1, 1, (100.0, 500), 100, 10)
    present = meter.present
    assert present is not None and present.seconds <= WINDOW_S + 1
    assert present.step_s == 0.1


def test_a_job_that_stands_still_is_not_measured() -> None:
    meter = Meter()
    for second in range(30):
        meter.look(1, 2, (float(second), 7, 70))
    assert meter.present is None and meter.rates == ()


def usage(at: float, step: int, waited_s: float = 0.0, loaded_s: float = 0.0, cpu_s: float = 0.0) -> Usage:
    return Usage(at, step, waited_s, loaded_s, cpu_s, 1000, {"loss": 0.5})


def test_a_timesheet_says_what_became_of_the_time() -> None:
    sheets = WorkerTimes()
    assert not sheets.take([Seated("a", 0, "h", usage(0, 10)), Seated("b", 1, "h", usage(5, 10))])
    after = [Seated("a", 0, "h", usage(10, 60, 4.0, 1.0, 5.0)), Seated("b", 1, "h", usage(15, 60))]
    assert sheets.take(after)
    spent = sheets.spent[0]
    assert (sheets.batches, spent.compute_s, spent.data_s, spent.wait_s) == (50, 0.1, 0.02, 0.08)
    view = sheets.views({"a": 0.7})[0]
    assert (view.pace, view.cpu, view.memory, view.reported) == (0.7, 0.5, 1000, {"loss": 0.5})


def test_a_newcomer_begins_a_new_sheet_for_all() -> None:
    sheets = WorkerTimes()
    sheets.take([Seated("a", 0, "h", usage(0, 10))])
    both = [Seated("a", 0, "h", usage(10, 60)), Seated("b", 1, "h", usage(10, 60))]
    assert not sheets.take(both)
    sheets.begin()
    assert not sheets.take(both)
    assert not sheets.take(both)  # neither has trained since
