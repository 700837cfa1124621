"""The pure part of the election, against a naive twin and over whole electorates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.coordination.election import Lead, Stand, WaitBehind, Withdraw, decide

ME, OTHER = "a" * 32, "b" * 32
SESSION, EARLIER = 7, 3


def name(uid: str, seq: int, term: int | None = None) -> str:
    return f"{uid}-{seq:010d}" + (f"-{term}" if term is not None else "")


def test_without_a_node_one_enters():
    assert decide([], {}, SESSION) == Stand()
    assert decide([name(OTHER, 1)], {}, SESSION) == Stand()


def test_the_lowest_leads_and_others_follow_the_nearest_before_them():
    mine = name(ME, 5)
    assert decide([mine, name(OTHER, 6)], {mine: SESSION}, SESSION) == Lead(mine)
    before = [name(OTHER, 1), name("c" * 32, 4, term=2)]
    assert decide([name("d" * 32, 9), mine, *before], {mine: SESSION}, SESSION) == WaitBehind(mine, before[1])


def test_numbers_are_compared_not_uids():
    mine = name("f" * 32, 1)
    assert decide([mine, name("0" * 32, 2)], {mine: SESSION}, SESSION) == Lead(mine)


def test_a_leaders_renamed_node_still_leads():
    mine = name(ME, 5, term=3)
    assert decide([mine, name(OTHER, 6)], {mine: SESSION}, SESSION) == Lead(mine)


def test_what_an_earlier_session_left_is_withdrawn_even_if_it_is_lowest():
    old, new = name(ME, 1, term=4), name(ME, 2)
    assert decide([old, new], {old: EARLIER, new: SESSION}, SESSION) == Withdraw((old,))
    assert decide([old], {old: EARLIER}, SESSION) == Withdraw((old,))


def test_of_two_nodes_of_one_session_the_later_is_withdrawn():
    first, second = name(ME, 1), name(ME, 2)
    assert decide([first, second], {first: SESSION, second: SESSION}, SESSION) == Withdraw((second,))


def test_what_is_no_candidate_is_ignored():
    mine = name(ME, 5)
    assert decide(["readme", "0-1", f"{OTHER}-1", mine], {mine: SESSION}, SESSION) == Lead(mine)


def test_a_node_of_mine_that_vanished_since_the_list_was_read_is_waited_out():
    gone, mine = name(ME, 1), name(ME, 2)
    assert decide([gone, mine], {mine: SESSION}, SESSION) == WaitBehind(mine, gone)


# ------------------------------------------------------------------------------------------- against a naive twin

nodes = st.lists(
    st.tuples(
        st.integers(0, 30),  # place in the queue
        st.sampled_from([ME, OTHER, "c" * 32]),
        st.one_of(st.none(), st.integers(1, 9)),  # term, in a leader's name
        st.sampled_from([SESSION, EARLIER]),
    ),
    max_size=8,
    unique_by=lambda node: node[0],
)


def naive(queue):
    """The same rules, said one at a time over nodes in their order."""
    good, surplus, before = None, [], []
    for seq, uid, term, owner in sorted(queue):
        if uid == ME and (owner != SESSION or good is not None):
            surplus.append(name(uid, seq, term))
        elif uid == ME:
            good = name(uid, seq, term)
        elif good is None:
            before.append(name(uid, seq, term))
    if surplus:
        return Withdraw(tuple(sorted(surplus)))
    if good is None:
        return Stand()
    return WaitBehind(good, before[-1]) if before else Lead(good)


@given(nodes, st.randoms())
def test_decisions_equal_the_naive_twins(queue, rng):
    names = [name(uid, seq, term) for seq, uid, term, _ in queue]
    rng.shuffle(names)
    mine = {name(uid, seq, term): owner for seq, uid, term, owner in queue if uid == ME}
    assert decide(names, mine, SESSION) == naive(queue)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20, unique=True))
def test_of_an_electorate_exactly_one_leads_and_the_rest_form_one_queue(places):
    names = [name(f"{place:032x}", place) for place in places]
    decisions = {own: decide(names, {own: SESSION}, SESSION) for own in names}
    leaders = [own for own, decision in decisions.items() if isinstance(decision, Lead)]
    followed = [decision.predecessor for decision in decisions.values() if isinstance(decision, WaitBehind)]
    assert leaders == [min(names, key=lambda own: int(own.split("-")[1]))]
    assert len(set(followed)) == len(names) - 1  # one waits for one: when a node goes, one candidate wakes


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_every_action_leads_closer_to_one_good_node(extra):
    """Carry decisions out on a plain set of nodes: from any mess of my own it takes two steps to stand properly."""
    state = {name(ME, n): (EARLIER if n % 2 else SESSION) for n in range(extra)}
    for _ in range(2):
        match decide(state, state, SESSION):
            case Withdraw(names):
                state = {own: owner for own, owner in state.items() if own not in names}
            case Stand():
                state[name(ME, 100)] = SESSION
            case Lead() | WaitBehind():
                break
    assert isinstance(decide(state, state, SESSION), Lead)
    assert len(state) == 1
