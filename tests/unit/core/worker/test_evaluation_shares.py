"""Who computes what in an evaluation."""

from __future__ import annotations

import pytest

from edl.core.worker.evaluation_shares import AssembleAgain, AssemblyWord, Compute, Finished, HandOver, outcome, share


def test_each_unit_is_one_members() -> None:
    for size in range(1, 9):
        for units in (0, 1, 5, 840):
            dealt = [unit for rank in range(size) for unit in share(range(units), size, rank)]
            assert sorted(dealt) == list(range(units))
            sizes = [len(share(range(units), size, rank)) for rank in range(size)]
            assert max(sizes) - min(sizes) <= 1


def test_only_what_nobody_has_is_computed() -> None:
    words = [AssemblyWord(0, True, (0, 2)), AssemblyWord(0, True), AssemblyWord(0, True, (5,))]
    assert [outcome(words, rank, 7) for rank in range(3)] == [Compute((1, 6)), Compute((3,)), Compute((4,))]


def test_all_of_it_is_there() -> None:
    words = [AssemblyWord(1, True, (1,), b"x"), AssemblyWord(1, True, (0, 2), b"y")]
    assert outcome(words, 0, 3) == Finished((b"x", b"y"))
    assert outcome([AssemblyWord(0, True), AssemblyWord(0, True)], 1, 0) == Finished((b"", b"")), "nothing to compute"


@pytest.mark.parametrize("goes_on", [True, False])
def test_who_lacks_a_result_gets_it(goes_on: bool) -> None:
    words = [AssemblyWord(0, True, (0, 1)), AssemblyWord(1, goes_on), AssemblyWord(1, goes_on)]
    assert outcome(words, 0, 2) == HandOver(1)


def test_who_has_not_come_yet_is_waited_for() -> None:
    assert outcome([AssemblyWord(1, True, (0,)), AssemblyWord(1, False)], 0, 1) == AssembleAgain()
