"""`edl.trainer.part_notes`: what workers tell each other of the tensors of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from edl.core.worker.compute_check import recomputed
from edl.errors import UsageError
from edl.trainer.part_notes import PartNotes
from edl.trainer.recomputed_parts import StepTrial
from edl.trainer.virtual_steps import Scales


def agreed(workers: Sequence[PartNotes], names: Sequence[Sequence[str]]) -> None:
    """Let each worker agree; what it says in the first pass is what all hear in the second."""
    said: list[list[list[int]]] = [[] for _ in workers]
    for heard in (False, True):
        for number, one in enumerate(workers):
            calls = iter(range(3))

            def largest(
                values: Sequence[int], number: int = number, calls: object = calls, heard: bool = heard
            ) -> list[int]:
                call = next(calls)  # type: ignore[call-overload]
                if heard:
                    return [max(same) for same in zip(*(words[call] for words in said), strict=True)]
                said[number].append(list(values))
                return list(values)

            one.agree(names[number], [], largest)


def notes_of(conditions: dict[str, str], largest: float) -> tuple[Scales, PartNotes]:
    scales = Scales(conditions, lambda: 4)
    notes = PartNotes(scales, [], short=True)
    notes.note("weight", largest, is_whole=False)
    return scales, notes


def test_all_take_the_largest_scale_and_hear_of_other_conditions() -> None:
    found = [notes_of({"machine": "x", "threads": threads}, size) for threads, size in (("1", 0.3), ("2", 5.0))]
    agreed([notes for _, notes in found], [["weight"], ["weight"]])
    assert [scales.exponents for scales, _ in found] == [{"weight": 4}, {"weight": 4}]
    assert {scales.bits for scales, _ in found} == {"not held since step 4: a worker with another threads"}


def test_workers_that_begin_a_job_in_other_conditions_keep_the_same_state() -> None:
    """Its weights are compared from the first step on."""
    found = [notes_of({"machine": "x", "threads": threads}, 1.0) for threads in ("1", "2", "1")]
    for scales, _ in found:
        scales.begin_step()
    agreed([notes for _, notes in found], 3 * [["weight"]])
    first, *others = (scales.state_dict() for scales, _ in found)
    assert others == [first, first]
    assert {tuple(scales.differing) for scales, _ in found} == {(0, 0)}
    newcomer = Scales({"machine": "y", "threads": "1"}, lambda: 5)
    newcomer.load_state_dict(first)
    assert newcomer.differing == [1, 0]


def test_alike_conditions_are_held() -> None:
    found = [notes_of({"machine": "x"}, size) for size in (0.3, 5.0)]
    agreed([notes for _, notes in found], [["weight"], ["weight"]])
    assert {scales.bits for scales, _ in found} == {"held"}


def test_other_tensors_are_refused() -> None:
    found = [notes_of({}, 1.0) for _ in range(2)]
    with pytest.raises(UsageError, match="the workers train different models"):
        agreed([notes for _, notes in found], [["weight"], ["bias"]])


def test_what_is_told_comes_back() -> None:
    scales = Scales({"machine": "x"})
    scales.exponents = {"weight": 3, "bias": 3}
    notes = PartNotes(scales, ["weight", "bias"], short=False)
    notes.note("weight", 1.0, is_whole=False)
    notes.note("weight", math.nan, is_whole=False)
    notes.note("bias", math.inf, is_whole=False)
    told = notes.told()
    assert len(told) == notes.length
    weight, bias = notes.hear(told) or []
    assert (weight.times, bias.times) == (2, 1)
    assert weight.filling is not None
    assert math.isnan(weight.filling)
    assert bias.filling == math.inf
    notes.note("bias", 9.0, is_whole=False)
    assert notes.hear(notes.told()) is None, "its scale does not suffice"


def test_what_is_as_large_as_the_limit_does_not_fit() -> None:
    for size, short in ((8.0, True), (math.nextafter(8.0, 0.0), False)):
        scales = Scales({})
        scales.exponents = {"weight": 3}
        notes = PartNotes(scales, ["weight"], short=False)
        notes.note("weight", size, is_whole=False)
        assert notes.short is short


def test_a_tensor_whose_scale_sufficed_gets_the_one_that_it_needs_too() -> None:
    scales = Scales({})
    scales.exponents = {"weight": 9, "bias": 3}
    notes = PartNotes(scales, ["weight", "bias"], short=False)
    for name, size in (("weight", 3.0), ("weight", 0.1), ("bias", 20.0), ("bias", 1.0)):
        notes.note(name, size, is_whole=False)
    agreed([notes], [["weight", "bias"]])
    assert scales.exponents == {"weight": 3, "bias": 6}


@pytest.mark.parametrize("size", [1.0, math.inf])
def test_a_sum_that_is_not_finite_is_looked_at_again(size: float) -> None:
    scales = Scales({})
    scales.exponents = {"weight": 3}
    trial = StepTrial((), 0, 8, lambda _: None, recomputed(5, 3, 8, 3, 1))
    notes = PartNotes(scales, ["weight"], short=False, trial=trial)
    notes.note("weight", size, is_whole=False)
    assert notes.hear(notes.told()) is not None
    assert notes.again is not math.isfinite(size)
