"""No step twice and none lost, whatever lives a job has and whichever machine rank 0 trains on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.exports.curves import SAMPLES, STEPS, WORKERS, Anew, AnotherLife, Curves, Item, StepRow, lives_of
from edl.launch.status_poller import Point


def point(ts: float, step: int, base: int = 0, host: str = "here", generation: int = 1, **figures: float) -> Point:
    return Point(ts, step, 10 * (step - base), 2, figures, base, host, generation)


def read(items: list[Item]) -> list[StepRow]:
    """As a tool does that reads them in their order."""
    found: list[StepRow] = []
    for item in items:
        found = [row for row in found if row.step < item.step] if isinstance(item, Anew) else [*found, item]
    return found


def steps(items: list[Item]) -> list[int]:
    return [row.step for row in read(items)]


def test_a_row_has_size_rates_and_what_the_script_reports() -> None:
    first, begun, second = Curves("here").take([point(1, 10, loss=0.5), point(3, 20, loss=0.25)])
    assert first == Anew(1, 1)
    assert begun == StepRow(10, 1, {WORKERS: 2.0, "loss": 0.5})
    assert second == StepRow(20, 3, {WORKERS: 2.0, SAMPLES: 50.0, STEPS: 5.0, "loss": 0.25})


def test_a_job_that_stands_has_no_step_twice_and_its_standing_counts_in_the_rate() -> None:
    items = Curves("here").take([point(1, 10), point(2, 10), point(3, 10), point(5, 14)])
    assert steps(items) == [10, 14]
    assert read(items)[-1].values[STEPS] == 1.0


def test_another_life_takes_back_what_is_trained_again() -> None:
    curves = Curves("here")
    items = curves.take([point(1, 10), point(2, 20), point(3, 30)])
    items += curves.take([point(5, 24, base=22)], [AnotherLife(22, 4)])
    assert items[-3:-1] == [Anew(20, 4), read(items)[1]]  # the last that counts comes again in place of itself
    assert steps(items) == [10, 20, 24]
    assert STEPS not in read(items)[-1].values  # not between two lives


def test_the_step_that_a_checkpoint_was_made_after_still_counts() -> None:
    curves = Curves("here")
    items = curves.take([point(1, 10), point(2, 20), point(3, 30)])
    assert steps(items + curves.take([point(5, 25, base=20)], [AnotherLife(20, 4)])) == [10, 20, 25]


def test_a_life_at_the_start_takes_back_all_of_the_one_before_also_where_it_is_further_by_now() -> None:
    curves = Curves("here")
    items = curves.take([point(1, 10), point(2, 20)])
    items += curves.take([point(9, 25)], [AnotherLife(0, 4)])
    assert steps(items) == [25]


def test_a_line_that_goes_on_from_a_checkpoint_takes_back_what_a_line_before_it_has_written() -> None:
    before = Curves("here").take([point(1, 90), point(2, 110)])
    assert steps([*before, *Curves("here").take([point(5, 104, base=100)])]) == [90, 104]


def test_lives_are_those_that_events_tell_of() -> None:
    story = [{"kind": "scaled", "ts": 1.0}, {"kind": "life_begun", "ts": 2.0, "from_step": 7}]
    assert lives_of(story) == [AnotherLife(7, 2.0)]


@given(st.lists(st.sampled_from(["here", "there"]), min_size=1, max_size=12), st.data())
def test_two_lines_write_each_step_once_however_their_looks_fall(hosts: list[str], data: st.DataObject) -> None:
    """Rank 0 is on `hosts[i]` from step 10 * i to 10 * i + 9. Each line looks at moments of its own."""
    written: list[tuple[float, Item]] = []
    for line in ("here", "there"):
        looks = sorted(data.draw(st.sets(st.integers(0, 10 * len(hosts) - 1), min_size=1)))
        items = Curves(line).take(point(step + 1, step, 0, hosts[step // 10], step // 10 + 1) for step in looks)
        ours = [step for step in looks if hosts[step // 10] == line]
        assert [item.step for item in items if isinstance(item, StepRow)] == ours
        written += [(item.ts, item) for item in items]
    merged = [item for _, item in sorted(written, key=lambda one: (one[0], isinstance(one[1], StepRow)))]
    wanted = [item.step for item in merged if isinstance(item, StepRow)]
    assert steps(merged) == sorted(set(wanted))
