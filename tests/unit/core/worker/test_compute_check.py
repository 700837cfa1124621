"""`edl.core.worker.compute_check`: which parts are computed again, and who is wrong where they come out otherwise."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from edl.core.worker.compute_check import ComputeVerdict, PartDigests, Recomputed, recomputed, rounds, verdict
from edl.protocol.data_nouns import held_by


@pytest.mark.parametrize(("virtual", "size"), [(8, 3), (8, 2), (4, 4), (7, 3), (256, 200)])
@pytest.mark.parametrize("share", [0.01, 0.25])
def test_over_many_steps_it_is_the_share_of_all_parts_that_was_asked_for(virtual: int, size: int, share: float) -> None:
    steps = 4000
    count = [rounds(5, step, virtual, size, share) for step in range(1, steps + 1)]
    assert sum(count) * size / (steps * virtual) == pytest.approx(share, rel=0.02)
    assert max(count) - min(count) <= 1
    due = [step for step, one in enumerate(count) if one]
    gaps = {later - earlier for earlier, later in itertools.pairwise(due)}
    assert max(gaps) - min(gaps) <= 1


def test_nothing_is_computed_again_alone_or_where_it_is_not_asked_for() -> None:
    assert not rounds(5, 7, 8, 1, 1.0)
    assert not recomputed(5, 7, 8, 1, 3)
    assert not any(rounds(5, step, 8, 3, 0.0) for step in range(1, 500))


@pytest.mark.parametrize(("virtual", "size", "count"), [(8, 3, 1), (8, 3, 99), (4, 4, 1), (9, 2, 2)])
def test_each_worker_computes_as_many_parts_of_its_successor_and_each_is_checked(
    virtual: int, size: int, count: int
) -> None:
    for step in range(1, 60):
        found = recomputed(5, step, virtual, size, count)
        checks, checked = Counter(one.checker for one in found), Counter(one.holder for one in found)
        assert set(checks) == set(checked) == set(range(size))
        assert len({one.virtual for one in found}) == len(found)
        for one in found:
            first, last = held_by(one.holder, size, virtual)
            assert first <= one.virtual < last
            assert len({one.holder, one.checker, one.third}) == 3
            assert checks[one.checker] == min(count, last - first)
    if count == 1:  # not the same part each time
        chosen = {one.virtual for step in range(1, 200) for one in recomputed(5, step, virtual, size, 1)}
        assert chosen == set(range(virtual))


def test_it_follows_from_seed_and_step_alone() -> None:
    assert recomputed(5, 3, 8, 3, 1) == recomputed(5, 3, 8, 3, 1)
    assert len({tuple(recomputed(seed, step, 8, 3, 1)) for seed in (1, 2) for step in range(1, 20)}) > 10


PARTS = recomputed(5, 3, 8, 3, 1)


def digests(wrong: Callable[[int, Recomputed, str], bool], *, third: bool) -> dict[int, PartDigests]:
    """Return what all workers find; `wrong` tells of a rank, a part and a role whether it computes wrongly."""

    def of(rank: int, one: Recomputed, role: str) -> int:
        return 100 + one.virtual + (1000 * (rank + 1) if wrong(rank, one, role) else 0)

    return {
        one.virtual: PartDigests(
            of(one.holder, one, "own"), of(one.checker, one, "again"), of(one.third or 0, one, "third") if third else 0
        )
        for one in PARTS
    }


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_third_shows_who_is_wrong_where_a_worker_always_errs(culprit: int) -> None:
    wrong = lambda rank, one, role: rank == culprit  # noqa: E731
    found = verdict(PARTS, digests(wrong, third=False), digests(wrong, third=True))
    assert found is not None
    assert (found.wrong, found.suspects) == ((culprit,), ())


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("role", ["own", "again"])
def test_and_where_it_erred_once(culprit: int, role: str) -> None:
    once = lambda rank, one, did: (rank, did) == (culprit, role)  # noqa: E731
    found = verdict(PARTS, digests(once, third=False), digests(lambda *_: False, third=True))
    assert found is not None
    assert (found.wrong, found.suspects, found.persists) == ((culprit,), (), False)


def test_of_two_either_may_be_wrong() -> None:
    (one,) = (one for one in recomputed(5, 3, 8, 2, 1) if one.holder == 0)
    first = {one.virtual: PartDigests(1, 2)}
    assert verdict([one], first, first) == ComputeVerdict(one.virtual, (), (0, 1), persists=True)
    assert verdict([one], first, {one.virtual: PartDigests(2, 2)}) == ComputeVerdict(one.virtual, (), (0, 1), False)


def test_three_that_all_differ_show_none() -> None:
    (one, *_) = PARTS
    found = verdict([one], {one.virtual: PartDigests(1, 2)}, {one.virtual: PartDigests(1, 2, 3)})
    assert found is not None
    assert (found.wrong, found.suspects) == ((), tuple(sorted((one.holder, one.checker))))


def test_what_agrees_or_was_not_computed_shows_nothing() -> None:
    (one, *_) = PARTS
    for digest in (PartDigests(5, 5), PartDigests(5, 0), PartDigests(0, 5), PartDigests()):
        assert verdict([one], {one.virtual: digest}, {}) is None
    assert verdict([one], {}, {}) is None


def test_a_worker_that_is_shown_to_be_wrong_is_no_suspect_besides() -> None:
    one, other, *_ = sorted(PARTS, key=lambda part: part.holder)
    first = {one.virtual: PartDigests(1, 2), other.virtual: PartDigests(3, 4)}
    found = verdict([one, other], first, {one.virtual: PartDigests(1, 2, 2), other.virtual: PartDigests(3, 4, 5)})
    assert found is not None
    assert (found.wrong, found.suspects) == ((one.holder,), (other.holder,))
