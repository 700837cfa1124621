"""What a script measures in an evaluation: the same figures, whichever worker computed which unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl.errors import UsageError
from edl.trainer.script_metrics import GatheredRows, Measuring, arrays_in, like, measured

SAMPLES = 11


def all_of_it(ids: Any) -> dict[str, Any]:
    return {
        "loss": np.float32(0.1) * len(ids),
        "right": int((ids % 2).sum()),
        "confusion": np.bincount(ids % 3, minlength=3),
        "rows": GatheredRows(np.stack([ids, ids * ids], axis=1)),
    }


def shared_out(function: Any, *shares: list[int]) -> dict[str, Any]:
    workers = [Measuring(function, SAMPLES, 2) for _ in shares]
    for worker, units in zip(workers, shares, strict=True):
        assert worker.compute(units, lambda: True) == units
    return measured([worker.found() for worker in workers])


def test_the_figures_do_not_depend_on_who_computed_what() -> None:
    alone = shared_out(all_of_it, [0, 1, 2, 3, 4, 5])
    assert (alone["right"], alone["confusion"].tolist()) == (5, [4, 4, 3])
    assert alone["rows"].tolist() == [[number, number**2] for number in range(SAMPLES)]
    for shares in ([5, 3, 1], [0, 2, 4]), ([], [4, 0, 5, 1, 3, 2]), ([2], [0, 1], [5, 4, 3]):
        found = shared_out(all_of_it, *shares)
        assert found["loss"] == alone["loss"], "to the last bit"
        assert found["right"] == alone["right"]
        np.testing.assert_array_equal(found["confusion"], alone["confusion"])
        np.testing.assert_array_equal(found["rows"], alone["rows"])


def test_who_is_told_to_stop_says_what_is_done() -> None:
    worker, asked = Measuring(all_of_it, SAMPLES, 2), iter([True, False])
    assert worker.compute([5, 1, 0], lambda: next(asked)) == [5, 1]
    assert measured([worker.found()])["right"] == 1


def test_infinities_and_nan_are_sums_too() -> None:
    found = shared_out(
        lambda ids: {"a": float("inf") if ids[0] else float("-inf"), "b": float("nan")}, [0, 1, 2, 3, 4, 5]
    )
    assert np.isnan(found["a"]) and np.isnan(found["b"])


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda ids: 3.0, "gave a float; it must return a dict"),
        (lambda ids: {"a": "text"}, "'a': a str is neither a number"),
        (lambda ids: {"a": GatheredRows(np.zeros((1, 2)))}, "1 rows were given to be gathered, of 2 samples"),
        (lambda ids: {"a": 1} if ids[0] else {"b": 1}, "the same names each time"),
    ],
)
def test_what_is_no_figure_is_refused_in_one_line(function: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        shared_out(function, [0, 1, 2, 3, 4, 5])
    assert "\n" not in str(caught.value)


def test_nested_values_keep_their_form() -> None:
    values = {"x": np.arange(3), "more": (np.ones((3, 2)), [np.zeros(3), np.ones(3)])}
    arrays = arrays_in(values, "here")
    assert [one.shape for one in arrays] == [(3,), (3, 2), (3,), (3,)]
    again = like(values, arrays)
    assert type(again["more"]) is tuple and type(again["more"][1]) is list
    assert again["more"][0].shape == (3, 2)
