"""What a script counts for itself becomes, on a newcomer, what the others have counted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl.torchrun.script_numbers import ScriptNumbers

SCRIPT = """
def decorated(function):
    return function


@decorated
def train(rank, batches, each, loader=(1, 2, 3)):
    step, best, name = 0, 9.0, "x"
    size = 4
    last = len(loader) - 1
    longest = len(name)

    def report(value):
        shown = 0
        for _ in range(1):
            shown = value
        return shown

    for index in batches:
        lowest = float(index)
        each(report)
        step += 1
        if lowest < best:
            best: float = lowest
    return rank, step, best, size, name, last, longest


def again(depth, each):
    count = 10 * depth
    for _ in range(1):
        count += 1
        if depth:
            again(depth - 1, each)
        else:
            each(None)


def outer(rank, batches, each):
    epochs_done = 0
    while epochs_done < 1:
        found = train(rank, batches, each)
        epochs_done = epochs_done + 1
    return found
"""


@pytest.fixture
def module(tmp_path: Path) -> Any:
    file = tmp_path / "counting.py"
    file.write_text(SCRIPT)
    spec = importlib.util.spec_from_file_location("counting", file)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_variables_of_the_module_that_training_changes_travel_and_no_others(tmp_path: Path) -> None:
    theirs: dict[str, Any] = {"rank": 0, "iteration": 0, "best": 1e9, "flag": True, "name": "x", "_private": 1}
    numbers = ScriptNumbers(theirs, is_of_script=beside(tmp_path))
    theirs |= {"iteration": 7, "best": 0.5, "flag": False, "_private": 2, "loss": 0.1, "text": "y", "local_rank": 3}
    assert numbers.now() == {"iteration": 7, "best": 0.5, "loss": 0.1}
    mine: dict[str, Any] = {"rank": 2, "iteration": 1, "best": 1e9}
    ScriptNumbers(mine, is_of_script=beside(tmp_path)).take(numbers.now())
    assert mine == {"rank": 2, "iteration": 7, "best": 0.5}


def test_what_a_running_function_assigns_in_a_loop_travels_and_its_other_variables_stay(
    module: Any, tmp_path: Path
) -> None:
    found = list[dict[str, Any]]()
    numbers = ScriptNumbers({}, is_of_script=beside(tmp_path))
    module.outer(0, [3, 2, 4], lambda _report: found.append(numbers.now()))
    assert found[2] == {
        "train:last": 2,
        "train:lowest": 4.0,
        "train:step": 2,
        "train:best": 2.0,
        "outer:epochs_done": 0,
    }
    came = found[2]
    ended = module.outer(
        7, [8], once(lambda: ScriptNumbers({}, is_of_script=beside(tmp_path)).take({**came, "train:last": 62}))
    )
    assert ended == (7, 3, 2.0, 4, "x", 62, 1)


def test_of_a_function_that_has_called_itself_only_the_innermost_counts(module: Any, tmp_path: Path) -> None:
    found = list[dict[str, Any]]()
    module.again(3, lambda _none: found.append(ScriptNumbers({}, is_of_script=beside(tmp_path)).now()))
    assert found == [{"again:count": 1}]


def test_what_a_late_script_has_changed_alone_is_again_what_it_was() -> None:
    """A script that passes over epochs may halve a rate that the others have not changed. Later it keeps its own."""
    mine: dict[str, Any] = {"rate": 0.1, "step": 0}
    numbers = ScriptNumbers(mine, is_late=True)
    mine |= {"rate": 0.05, "step": 3}
    numbers.take({"step": 40})
    assert mine == {"rate": 0.1, "step": 40}
    mine["rate"] = 0.02
    numbers.take({"step": 41})
    assert mine == {"rate": 0.02, "step": 41}


def test_who_was_there_from_the_beginning_keeps_what_the_others_have_not_changed() -> None:
    """As the best result of a script that only rank 0 looks at."""
    mine: dict[str, Any] = {"best": 9.0, "step": 0}
    numbers = ScriptNumbers(mine)
    mine |= {"best": 0.5, "step": 3}
    numbers.take({"step": 4})
    assert mine == {"best": 0.5, "step": 4}


SUMS = """
seen = step = 0
def train(batches, each):
    total = count = 0
    for batch in batches:
        total += len(batch)
        count += 1
        each()
for batch in ():
    seen += len(batch)
    step += 1
"""


def test_what_a_worker_adds_up_and_makes_of_its_rank_stays_its_own(tmp_path: Path) -> None:
    file = tmp_path / "sums.py"
    file.write_text(SUMS)
    variables: dict[str, Any] = {"__file__": str(file)}
    exec(compile(SUMS, str(file), "exec"), variables)
    variables["at"] = 0
    numbers, found = ScriptNumbers(variables, {"at"}, beside(tmp_path)), list[dict[str, Any]]()
    variables |= {"seen": 5, "step": 2, "at": 16}
    variables["train"](["ab", "c"], lambda: found.append(numbers.now()))
    assert found[1] == {"step": 2, "train:count": 2}


def test_variables_of_a_function_elsewhere_stay_its_own(module: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    found = list[dict[str, Any]]()
    module.train(0, [3], lambda _report: found.append(ScriptNumbers({}, is_of_script=beside(other)).now()))
    assert found == [{}]


def test_in_another_thread_the_main_threads_functions_are_asked(module: Any, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    found = list[dict[str, Any]]()
    numbers = ScriptNumbers({}, is_of_script=beside(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        module.train(0, [3], lambda _report: found.append(pool.submit(numbers.now).result()))
    assert found == [{"train:last": 2, "train:lowest": 3.0, "train:step": 0, "train:best": 9.0}]


def beside(folder: Path) -> Callable[[str], bool]:
    return lambda file: Path(file).is_relative_to(folder)


def once(function: Callable[[], object]) -> Callable[[Any], object]:
    calls = [function]
    return lambda _given: calls.pop()() if calls else None
