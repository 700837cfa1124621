"""What is made of the notes of a library's workers: pauses of survivors, and the difference to the bare loop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.library_pause import Change, Step, changes_of, is_within, pauses, shown, told


def worker(*runs: tuple[int, int, float, Sequence[float]]) -> list[Step]:
    """Of each ring: its size, its generation, when its first step began, and the lengths of its steps in ms."""
    steps = []
    for size, generation, began, lengths in runs:
        steps.append(Step(began, size, generation))
        for length in lengths:
            steps.append(Step(steps[-1].began + length / 1000, size, generation))
    return steps


def test_of_each_change_counts_the_survivor_that_lost_most() -> None:
    one = worker((2, 1, 10.0, [20] * 5), (3, 2, 10.180, [20] * 5), (2, 3, 10.350, [20] * 5))
    other = worker((2, 1, 10.0, [20] * 5), (3, 2, 10.210, [20] * 5), (2, 3, 10.350, [20] * 5))
    newcomer = worker((3, 2, 10.200, [20] * 5))
    found = changes_of([one, newcomer, other])
    assert [(change.before, change.after) for change in found] == [(2, 3), (3, 2)]
    assert [change.pause for change in found] == pytest.approx([90.0, 50.0])


def test_what_the_next_ten_steps_take_longer_is_told_beside_the_pause() -> None:
    put_off = worker((2, 1, 10.0, [20] * 20), (3, 2, 10.430, [20, 120, 20, 15, *[20] * 6, 200, *[20] * 10]))
    (change,) = changes_of([put_off])
    assert (change.pause, change.later) == pytest.approx((10.0, 95.0))


def test_the_step_across_a_change_counts_in_none_of_its_neighbours() -> None:
    """Nor in the medians: a first ring of three steps, a second one of two."""
    (first, second) = changes_of([worker((2, 1, 0.0, [20, 20]), (3, 2, 0.560, [30]), (2, 3, 0.690, [30, 30]))])
    assert first.pause == pytest.approx(520.0 - 20.0)
    assert second.pause == pytest.approx(100.0 - 30.0)


def test_a_worker_in_the_place_of_another_is_no_change_of_size() -> None:
    assert changes_of([worker((2, 1, 0.0, [20] * 3), (2, 2, 0.5, [20] * 3))]) == []


def change(pause: float, before: int = 2, after: int = 3) -> Change:
    return Change(before, after, pause, 0.0)


def test_medians_are_of_all_rounds_and_of_each_and_the_longest_is_named() -> None:
    found = pauses([[change(40), change(500, 3, 2), change(60)], [change(90), change(70), change(10)]], (2, 3))
    assert (found.median, found.of_rounds, found.changes) == (60, (50, 70), 5)
    assert (found.longest.turn, found.longest.number, found.longest.change.pause) == (2, 1, 90)


def test_fifty_milliseconds_more_than_the_bare_loop_are_allowed() -> None:
    bare, near, far = ([[change(pause)]] for pause in (60, 110, 110.5))
    assert is_within(pauses(near, (2, 3)), pauses(bare, (2, 3)))
    assert not is_within(pauses(far, (2, 3)), pauses(bare, (2, 3)))


def test_a_line_names_the_difference_of_each_round() -> None:
    bare = pauses([[change(60)], [change(50)]], (2, 3))
    own = pauses([[change(64)], [change(72)]], (2, 3))
    assert shown("keras", (2, 3), own, bare) == (
        "2 -> 3  Keras's fit: pause 68 ms (median of 2), longest 72 ms (round 2, change 1), after +0 ms; "
        "to the bare loop +13 ms (rounds +4, +22)"
    )


@pytest.mark.parametrize(("shrinking", "good"), [(90.0, True), (120.0, False)])
def test_one_library_that_pauses_too_long_is_enough(shrinking: float, good: bool) -> None:
    bare = [[change(60), change(60, 3, 2)]]
    found = {"torch": bare, "tensorflow": bare, "keras": bare, "lightning": [[change(60), change(shrinking, 3, 2)]]}
    lines: list[str] = []
    assert told(["lightning", "keras"], found, lines.append) is good
    assert [line.split("  ")[1].split(":")[0] for line in lines] == [
        "the bare loop of PyTorch",
        "Lightning",
        "the bare loop of TensorFlow",
        "Keras's fit",
    ] * 2
