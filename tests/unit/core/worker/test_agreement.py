"""One word from each member tells a new ring where it begins, and from whose state (I5)."""

from __future__ import annotations

import msgspec
import pytest

from edl.core.worker.agreement import (
    Agreed,
    Beginning,
    Entering,
    Vote,
    agreed,
    begins,
    doubts,
    has_state,
    newness,
    says,
)
from edl.errors import JobFailed, RingBroken
from edl.protocol.assignment import Assignment, Place


def planned(after_step: int | None, newcomers: int = 0) -> Assignment:
    return Assignment(Place(2, 0, 2, "w0"), after_step, newcomers)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([7, 7, 7], Agreed(7, 0)), ([7, 8, 7], Agreed(8, 1)), ([8, 7, 8], Agreed(8, 0)), ([None, 5, 6], Agreed(6, 2))],
)
def test_the_newest_step_and_the_lowest_rank_that_has_it(steps: list[int | None], expected: Agreed) -> None:
    votes = [newness(step or 0, rank, has_state=step is not None) for rank, step in enumerate(steps)]
    assert agreed(max(votes)) == expected


def test_no_member_has_a_state_before_the_first_step() -> None:
    assert not has_state(0, tainted=False)
    assert agreed(newness(0, 3, has_state=False)) is None


def test_a_copy_that_broke_off_is_no_state() -> None:
    assert not has_state(7, tainted=True)


def test_a_survivor_that_comes_with_another_step_doubts() -> None:
    """A leaver died in step 11, which others have applied: unasked, this one would go on with the model of step 10."""
    assert doubts(planned(11), generation=1, step=10, has_state=True)
    assert not doubts(planned(11), generation=1, step=11, has_state=True)
    assert doubts(planned(11), generation=1, step=11, has_state=False)


def test_a_newcomer_does_not_doubt_and_in_a_forced_switch_all_are_asked_anyway() -> None:
    assert not doubts(planned(11, newcomers=1), generation=0, step=0, has_state=False)
    assert not doubts(planned(None), generation=1, step=10, has_state=True)


def test_a_member_of_an_older_ring_is_a_newcomer_to_those_that_have_had_another_since() -> None:
    later = msgspec.structs.replace(planned(148, newcomers=1), follows=21, prepared=True, beside=1, offer=7)
    assert not doubts(later, generation=8, step=15, has_state=True)
    assert doubts(msgspec.structs.replace(later, newcomers=0), generation=8, step=15, has_state=True)
    old, survivor = Entering(later, 8, 15, has_state=True), Entering(later, 21, 148, has_state=True)
    assert (old.is_new, survivor.is_new) == (True, False)
    assert says(old) is None
    assert begins(old, None) == Beginning(148, 0, current=False, offer=7), "it gets the state, and its own is forgotten"
    assert begins(survivor, None) == Beginning(148, 0, current=True, offer=7)


def entering(rank: int, size: int, generation: int, step: int, *, plan: Assignment, voided: bool = False) -> Entering:
    mine = msgspec.structs.replace(plan, place=Place(2, rank, size, f"w{rank}"))
    return Entering(mine, generation, step, has_state=step > 0, voided=voided)


def beginnings(*members: tuple[int, int, bool], plan: Assignment) -> list[Beginning]:
    """All members of a ring agree; each is a generation, a step, and whether the mini-batch after that was void."""
    size = len(members)
    return agreed_by(
        [entering(rank, size, come, at, plan=plan, voided=void) for rank, (come, at, void) in enumerate(members)]
    )


def agreed_by(members: list[Entering]) -> list[Beginning]:
    said = [says(member) for member in members]
    heard = Vote(*(max(column) for column in zip(*(vote for vote in said if vote is not None), strict=True)))
    return [begins(member, heard) for member in members]


def test_where_all_come_as_planned_nothing_is_copied_but_statistics() -> None:
    assert beginnings((1, 11, False), (1, 11, False), plan=planned(11)) == [Beginning(11, 0, current=True)] * 2


def test_a_member_that_comes_from_a_void_mini_batch_lets_all_take_over_what_that_may_have_changed() -> None:
    """The word of the switch came late for it: a schedule of the script may have moved on, though no weight has."""
    found = beginnings((1, 11, False), (1, 11, True), plan=planned(11))
    assert found == [Beginning(11, 0, unsure=True, current=True)] * 2


@pytest.mark.parametrize("after_step", [11, None], ids=["planned", "forced"])
def test_a_member_that_is_behind_lets_all_take_over_the_newest_state(after_step: int | None) -> None:
    found = beginnings((1, 10, True), (1, 11, False), plan=planned(after_step))
    assert found == [Beginning(11, 1, whole=True, unsure=True, current=current) for current in (False, True)]


def test_in_a_forced_switch_of_equals_only_what_may_differ_goes_to_all() -> None:
    found = beginnings((1, 11, True), (1, 11, True), plan=planned(None))
    assert found == [Beginning(11, 0, unsure=True, current=True)] * 2


@pytest.mark.parametrize("has_state", [True, False], ids=["of an older step", "half a copy"])
def test_a_member_without_the_newest_state_gets_it_whole_whoever_else_is_ahead(has_state: bool) -> None:
    members = [entering(rank, 3, 1, step, plan=planned(None)) for rank, step in enumerate((11, 12, 12))]
    members[0].has_state = has_state
    found = agreed_by(members)
    assert found == [Beginning(12, 1, whole=True, unsure=True, current=current) for current in (False, True, True)]


def test_a_planned_switch_with_newcomers_sends_them_the_whole_state() -> None:
    found = beginnings((1, 11, False), (0, 0, False), plan=planned(11, newcomers=1))
    assert found == [Beginning(11, 0, whole=True, current=current) for current in (True, False)]


def test_a_ring_does_not_stand_with_a_member_that_has_not_booted_where_others_have_trained() -> None:
    for trained, raises in ((11, True), (0, False)):
        members = [entering(0, 2, 1, trained, plan=planned(None)), entering(1, 2, 0, 0, plan=planned(None))]
        members[1].booted = False
        if raises:
            with pytest.raises(RingBroken, match="not booted"):
                agreed_by(members)
        else:
            assert agreed_by(members) == [Beginning(0, None)] * 2


def test_a_member_that_has_trained_fails_where_none_has_a_whole_state() -> None:
    member = entering(0, 1, 1, 10, plan=planned(None))
    member.has_state = False
    with pytest.raises(JobFailed, match="lost"):
        agreed_by([member])
