"""A newcomer goes on in loops over a range where the others are."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl.torchrun.range_loops import ScriptRange, makes_batches
from edl.torchrun.script_files import SourceFile
from edl.torchrun.script_numbers import ScriptNumbers

SCRIPT = """
def tqdm(steps, desc=""):
    yield from steps


def train(epochs, steps, each, epoch=-1):
    seen = []
    for epoch in range(epochs):
        for _ in range(3):
            pass
        for step in tqdm(range(2, steps, 2)):
            each()
            seen.append((epoch, step))
    return seen


def paired(each):
    seen = []
    for left, right in zip(range(4), "abcd"):
        each()
        seen.append((left, right))
    return seen
"""


@pytest.fixture
def module(tmp_path: Path) -> Any:
    file = tmp_path / "looping.py"
    file.write_text(SCRIPT)
    spec = importlib.util.spec_from_file_location("looping", file)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    vars(found)["range"] = ScriptRange
    spec.loader.exec_module(found)
    return found


def at(call: int, act: Callable[[], Any]) -> Callable[[], None]:
    calls = iter(range(1, 1000))
    return lambda: act() if next(calls) == call else None


def numbers(tmp_path: Path) -> ScriptNumbers:
    return ScriptNumbers({}, is_of_script=lambda file: file.startswith(str(tmp_path)))


def test_a_newcomer_goes_on_where_the_others_are(module: Any, tmp_path: Path) -> None:
    came = dict[str, Any]()
    module.train(3, 12, at(7, lambda: came.update(numbers(tmp_path).now())))
    assert [value for key, value in came.items() if "for " in key] == [2, 2], "the second step of the second epoch"
    seen = module.train(3, 12, at(1, lambda: numbers(tmp_path).take(came)))
    assert seen == [(1, 4), (1, 6), (1, 8), (1, 10), *((2, step) for step in range(2, 12, 2))]


def test_one_that_is_farther_stays_there(module: Any, tmp_path: Path) -> None:
    came = dict[str, Any]()
    module.train(1, 12, at(2, lambda: came.update(numbers(tmp_path).now())))
    seen = module.train(1, 12, at(4, lambda: numbers(tmp_path).take(came)))
    assert seen == [(0, step) for step in range(2, 12, 2)]


def test_a_range_beside_something_else_is_left_alone(module: Any, tmp_path: Path) -> None:
    came = dict[str, Any]()
    module.paired(at(3, lambda: came.update(numbers(tmp_path).now())))
    assert not any("for " in key for key in came)


def test_it_is_a_range_to_all_who_ask() -> None:
    made = ScriptRange(1, 9, 2)
    assert [*made] == [*range(1, 9, 2)] and [*reversed(made)] == [7, 5, 3, 1]
    assert (len(made), made[1], made[1:], 3 in made, 4 in made, made.index(5)) == (4, 3, range(3, 9, 2), True, False, 2)
    assert (made.start, made.stop, made.step, repr(made)) == (1, 9, 2, "range(1, 9, 2)")
    assert made == range(1, 9, 2) and made == ScriptRange(1, 9, 2) and hash(made) == hash(range(1, 9, 2))
    assert isinstance(range(3), ScriptRange) and isinstance(made, ScriptRange) and not isinstance([1], ScriptRange)
    assert copy.deepcopy(made) == range(1, 9, 2) and type(copy.deepcopy(made)) is range


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        ("for step in range(10):\n    optimizer.step()", True),
        ("for step in tqdm.tqdm(range(10)):\n    optimizer.step()", True),
        ("while True:\n    optimizer.step()", False),
        ("sampler = DistributedSampler(data)\nfor epoch in range(10):\n    pass", False),
    ],
)
def test_a_script_that_makes_its_batches_in_such_a_loop_is_known(text: str, makes: bool) -> None:
    assert makes_batches([SourceFile("train.py", text)]) is makes
