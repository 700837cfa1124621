"""Which collectives belong together, as all members see it alike."""

from __future__ import annotations

import random

import pytest

from edl.core.worker.collective_matching import (
    CALL_CHARACTERS,
    FORM_CHARACTERS,
    Announcement,
    Match,
    Matching,
    Round,
    RoundHeard,
    announcement,
)


def called(name: str | None, form: str = "float32 [3]", kind: str = "allreduce") -> Announcement:
    return announcement(kind, name, form)


def calls(heard: RoundHeard) -> list[str]:
    return [match.of[0].call for match in heard.matches]


def test_what_all_have_begun_matches_by_name_in_whatever_order() -> None:
    matching = Matching(2)
    assert matching.hear([Round((called("a"),)), Round((called("b"),))]) == RoundHeard()
    heard = matching.hear([Round((called("b"),)), Round((called("a"),))])
    assert calls(heard) == ["allreduce 'b'", "allreduce 'a'"]
    assert not any(match.difference for match in heard.matches)


def test_without_a_name_those_of_a_kind_match_in_their_order() -> None:
    matching = Matching(2)
    first, second, other = called(None, "one"), called(None, "two"), called(None, "", "barrier")
    heard = matching.hear([Round((first, second)), Round((other, first))])
    assert [match.of for match in heard.matches] == [(first, first)]
    heard = matching.hear([Round((other,)), Round((second,))])
    assert [match.of for match in heard.matches] == [(other, other), (second, second)]


def test_a_name_never_matches_what_has_none_or_is_another_kind() -> None:
    keys = {called(None).key, called("").key, called("a").key, called("a", kind="broadcast").key}
    assert len(keys) == 4


def test_both_sides_of_a_difference_are_named() -> None:
    alike, other = called("loss", "float32 [3]"), called("loss", "int32 [3]")
    assert not Match((alike, alike, alike)).difference
    assert Match((alike, alike, other)).difference == (
        "allreduce 'loss': float32 [3] on rank 0, but int32 [3] on rank 2: "
        "all workers must pass the same type, shape and arguments"
    )


def test_a_difference_that_is_cut_off_for_people_is_still_one() -> None:
    long = "x" * 10_000
    one, other = called(long, long + "1"), called(long, long + "2")
    assert Match((one, other)).difference
    assert one.key == other.key != called(long + "more").key
    assert len(one.call) == CALL_CHARACTERS and len(one.form) == FORM_CHARACTERS


def test_rows_may_differ() -> None:
    mine, theirs = announcement("allgather", "a", "rows", [3]), announcement("allgather", "a", "rows", [0])
    match = Match((mine, theirs))
    assert (match.rows, match.difference) == ([(3,), (0,)], "")


def test_where_all_wait_for_what_not_all_have_begun_none_goes_on_waiting() -> None:
    matching = Matching(2)
    matching.hear([Round((called("a"),)), Round((called("b"),))])
    heard = matching.hear([Round(waits="allreduce 'a'"), Round(waits="allreduce 'b'")])
    assert heard.stuck == (
        "the workers wait for each other: rank 0 for allreduce 'a', rank 1 for allreduce 'b': "
        "all workers must call the same collectives"
    )
    # and what was given up is not matched with what comes later
    assert matching.hear([Round((called("b"),)), Round()]) == RoundHeard()
    assert calls(matching.hear([Round(), Round((called("b"),))])) == ["allreduce 'b'"]


@pytest.mark.parametrize("other", [Round(), Round((called("c"),))], ids=["polls", "begins-another"])
def test_a_member_that_may_still_begin_it_is_waited_for(other: Round) -> None:
    matching = Matching(2)
    matching.hear([Round((called("a"),)), Round()])
    assert matching.hear([Round(waits="allreduce 'a'"), other]) == RoundHeard()
    assert calls(matching.hear([Round(waits="allreduce 'a'"), Round((called("a"),))])) == ["allreduce 'a'"]


def test_all_that_is_begun_by_all_matches_once_whatever_the_orders() -> None:
    """Against the naive: a collective is matched by the round in which the last member says it."""
    for seed in range(200):
        chance = random.Random(seed)
        size, names = chance.randint(2, 4), [str(number) for number in range(chance.randint(1, 6))]
        orders = [chance.sample(names, len(names)) for _ in range(size)]
        matching, begun, found = Matching(size), [set[str]() for _ in range(size)], list[str]()
        while any(orders):
            said = [[order.pop() for _ in range(chance.randint(0, min(2, len(order))))] for order in orders]
            for mine, more in zip(begun, said, strict=True):
                mine.update(more)
            heard = matching.hear([Round(tuple(map(called, more))) for more in said])
            found += [match.of[0].call for match in heard.matches]
            assert {f"allreduce {name!r}" for name in set.intersection(*begun)} == set(found)
        assert len(found) == len(names)
