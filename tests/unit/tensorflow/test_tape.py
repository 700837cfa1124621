"""A tape in a traced step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from edl.tensorflow import tf_reducer


class Seen:
    """`edl.tensorflow.tf_reducer.Reducer`, as far as a tape asks: by which file."""

    def __init__(self) -> None:
        self.by: list[str] = []

    def average_of_tape(self, gradients: list[Any], _variables: list[Any]) -> list[Any]:
        self.by.append(sys._getframe(1).f_code.co_filename)
        return gradients


def test_what_is_edls_own_is_traced_as_it_stands() -> None:
    """AutoGraph would have rewritten it into a file of its own."""
    seen, variable = Seen(), tf.Variable(2.0)

    @tf.function
    def step() -> Any:
        with tf_reducer.AveragingTape(seen, False, True) as recorded:  # type: ignore[arg-type]
            loss = variable * variable
        return recorded.gradient(loss, variable)

    assert float(step()) == 4.0
    assert [Path(one).name for one in seen.by] == ["tf_reducer.py"]
    assert Path(seen.by[0]).samefile(tf_reducer.__file__)
