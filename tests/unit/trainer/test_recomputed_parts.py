"""`edl.trainer.recomputed_parts`: what workers tell each other of parts that are computed a second time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from edl.core.worker.compute_check import ComputeVerdict, Recomputed, recomputed
from edl.protocol.data_nouns import held_by
from edl.trainer.recomputed_parts import UNCHECKED, StepTrial

VIRTUAL = 8
Digest = Callable[[int, int, int], int]  # of a rank, a virtual worker and a try


class Step:
    """One step of a ring, in as many tries as it takes. `finite`: of each try, whether its sums are."""

    def __init__(
        self,
        digest: Digest,
        parts: Sequence[Recomputed] = (),
        besides: Sequence[Recomputed] = (),
        size: int = 3,
        finite: Sequence[bool] = (True, True, True),
    ) -> None:
        self.judged: list[ComputeVerdict] = []
        self.computed: list[list[list[int]]] = []  # by try and rank, besides the own parts
        trials = [StepTrial(parts, rank, VIRTUAL, self.judged.append, besides) for rank in range(size)]
        for number, is_finite in enumerate(finite):
            for rank, trial in enumerate(trials):
                for virtual in range(*held_by(rank, size, VIRTUAL)):
                    trial.note(virtual, digest(rank, virtual, number), own=True)
                for virtual in trial.more:
                    trial.note(virtual, digest(rank, virtual, number), own=False)
            self.computed.append([trial.more for trial in trials])
            told = [sum(same) for same in zip(*(trial.told() for trial in trials), strict=True)]
            assert all(-(2**31) <= one < 2**31 for one in told)
            again = {trial.hear(told, finite=is_finite) for trial in trials}
            assert len(again) == 1
            if not again.pop():
                break


PARTS = recomputed(5, 3, VIRTUAL, 3, 1)


def right(_: int, virtual: int, __: int) -> int:
    return 2**64 - 1 - virtual


def wrong_on(culprit: int, tries: Sequence[int] = range(9)) -> Digest:
    return lambda rank, virtual, number: 77 if rank == culprit and number in tries else right(rank, virtual, number)


def test_parts_that_agree_cost_one_try_with_one_part_more_for_each() -> None:
    step = Step(right, PARTS)
    assert [list(map(len, one)) for one in step.computed] == [[1, 1, 1]]
    assert not step.judged


def test_a_step_that_is_not_due_computes_nothing_more() -> None:
    step = Step(wrong_on(1), besides=PARTS)
    assert step.computed == [[[], [], []]]


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("tries", [range(9), [0]])
def test_all_hear_who_is_wrong_after_one_more_try(culprit: int, tries: Sequence[int]) -> None:
    step = Step(wrong_on(culprit, tries), PARTS)
    assert len(step.computed) == 2
    assert sum(map(len, step.computed[1])) > sum(map(len, step.computed[0]))  # thirds
    assert [one.wrong for one in step.judged] == 3 * [(culprit,)]


def test_sums_that_are_not_finite_are_looked_at_though_the_step_is_not_due() -> None:
    step = Step(wrong_on(2), besides=PARTS, finite=(False, False, False))
    assert len(step.computed) == 3
    assert {one.wrong for one in step.judged} == {(2,)}
    innocent = Step(right, besides=PARTS, finite=(False, False, False))  # as a scaler's overflow, on all alike
    assert (len(innocent.computed), innocent.judged) == (2, [])


def test_of_two_workers_both_are_told() -> None:
    step = Step(wrong_on(1), recomputed(5, 3, VIRTUAL, 2, 1), size=2)
    assert {(one.wrong, one.suspects) for one in step.judged} == {((), (0, 1))}


def test_a_worker_that_computed_nothing_is_not_suspected() -> None:
    parts, judged = PARTS, []
    trial = StepTrial(parts, 0, VIRTUAL, judged.append)
    trial.note(parts[0].virtual, 5, own=True)
    assert not trial.hear(trial.told(), finite=True)
    assert not judged


def test_a_digest_of_zero_counts_as_computed() -> None:
    step = Step(lambda rank, virtual, number: 0 if rank == 1 else right(rank, virtual, number), PARTS)
    assert {one.wrong for one in step.judged} == {(1,)}


def test_a_job_that_checks_nothing_tells_nothing() -> None:
    assert (UNCHECKED.length, UNCHECKED.told(), UNCHECKED.more) == (0, [], [])
