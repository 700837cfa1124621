"""Workers on nodes: no node holds more than it can."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import nodes

from edl.cluster.placement import Rule, place
from edl.cluster.views import Node, Placement
from edl.errors import ConfigError

Asked = dict[str, int]


@st.composite
def asked(draw: st.DrawFn) -> tuple[tuple[Node, ...], Asked, Asked]:
    """Nodes, what each job has, and what it is to have."""
    there = tuple(Node(f"n{at}", draw(st.integers(1, 4))) for at in range(draw(st.integers(1, 4))))
    return there, draw(within(there)), draw(within(there))


@st.composite
def within(draw: st.DrawFn, there: tuple[Node, ...]) -> Asked:
    free, found = sum(node.devices for node in there), {}
    for name in draw(st.permutations("abcdef")):
        found[name] = draw(st.integers(0, min(free, 6)))
        free -= found[name]
    return found


def used(placements: dict[str, Placement]) -> Counter[str]:
    found: Counter[str] = Counter()
    for placement in placements.values():
        found.update(placement)
    return found


@pytest.mark.parametrize("rule", list(Rule))
@given(case=asked(), draw=st.data())
def test_a_worker_of_several_devices_is_whole_on_one_node(
    rule: Rule, case: tuple[tuple[Node, ...], Asked, Asked], draw: st.DataObject
) -> None:
    there, first, then = case
    each = {name: draw.draw(st.integers(1, 3), label=name) for name in first}
    has, wants = ({name: size - size % each[name] for name, size in one.items()} for one in (first, then))
    before = place(there, {}, has, rule, each=each)
    seated = {name: sum(placement.values()) for name, placement in before.items()}
    after = place(there, before, wants, rule, each=each)
    for wanted, placements in ((has, before), (wants, after)):
        assert all(used(placements)[node.name] <= node.devices for node in there)
        for name, placement in placements.items():
            assert sum(placement.values()) <= wanted[name]
            assert all(count > 0 and count % each[name] == 0 for count in placement.values())
    for name, size in wants.items():
        short = size - sum(after.get(name, {}).values())
        if 0 < size <= seated.get(name, 0) and rule is not Rule.MOST_FREE:
            assert not short
        left = {node.name: node.devices - used(after)[node.name] for node in there}
        assert not short or max(left.values()) < each[name], f"{name} has too few, and there is room: {left}"


@pytest.mark.parametrize("rule", list(Rule))
@given(case=asked())
def test_each_job_has_its_workers_and_no_node_too_many(rule: Rule, case: tuple[tuple[Node, ...], Asked, Asked]) -> None:
    there, has, wants = case
    before = place(there, {}, has, rule)
    after = place(there, before, wants, rule)
    for wanted, placements in ((has, before), (wants, after)):
        assert {name: sum(placement.values()) for name, placement in placements.items()} == {
            name: size for name, size in wanted.items() if size
        }
        assert all(used(placements)[node.name] <= node.devices for node in there)
        assert all(count > 0 for placement in placements.values() for count in placement.values())
    for name, size in wants.items():
        if size and size == has[name]:
            assert after[name] == before[name]
        if 0 < size < has[name] and rule is not Rule.MOST_FREE:
            assert all(count <= before[name][node] for node, count in after[name].items())


def fewest_nodes(there: tuple[Node, ...], free: Counter[str], size: int) -> int:
    """By trying all sets of nodes."""
    best = len(there) + 1
    for picked in product((0, 1), repeat=len(there)):
        if sum(free[node.name] for node, is_in in zip(there, picked, strict=True) if is_in) >= size:
            best = min(best, sum(picked))
    return best


@given(case=asked(), size=st.integers(1, 6))
def test_a_job_that_comes_is_packed_on_as_few_nodes_as_can_be(
    case: tuple[tuple[Node, ...], Asked, Asked], size: int
) -> None:
    there, has, _ = case
    before = place(there, {}, has)
    free = Counter({node.name: node.devices for node in there}) - used(before)
    if sum(free.values()) >= size:
        after = place(there, before, {**has, "new": size})
        assert len(after["new"]) == fewest_nodes(there, free, size)


def test_the_fullest_node_that_does_is_taken() -> None:
    before = place(nodes(3, 4), {}, {"a": 1, "b": 3})
    assert before == {"b": {"n0": 3}, "a": {"n0": 1}}
    before = {"a": {"n0": 1}, "b": {"n1": 3}}
    assert place(nodes(3, 4), before, {"a": 1, "b": 3, "c": 1})["c"] == {"n1": 1}
    assert place(nodes(3, 4), before, {"a": 1, "b": 3, "c": 3})["c"] == {"n0": 3}
    assert place(nodes(3, 4), before, {"a": 1, "b": 3, "c": 3}, Rule.MOST_FREE)["c"] == {"n2": 3}
    assert place(nodes(3, 4), before, {"a": 1, "b": 3, "c": 3}, Rule.SPREAD)["c"] == {"n2": 2, "n0": 1}


def test_what_grows_stays_unless_it_fits_on_fewer_nodes_elsewhere() -> None:
    before = {"a": {"n0": 2}, "b": {"n0": 2}}
    assert place(nodes(2, 4), before, {"a": 4, "b": 2})["a"] == {"n1": 4}
    assert place(nodes(2, 4), before, {"a": 5, "b": 2})["a"] == {"n0": 2, "n1": 3}
    assert place(nodes(2, 4), {"a": {"n0": 2}}, {"a": 3})["a"] == {"n0": 3}


def test_what_shrinks_leaves_the_node_where_it_has_fewest() -> None:
    before = {"a": {"n0": 4, "n1": 1}}
    assert place(nodes(2, 4), before, {"a": 4}) == {"a": {"n0": 4}}
    assert place(nodes(2, 4), before, {"a": 3}) == {"a": {"n0": 3}}
    assert place(nodes(2, 4), before, {"a": 3}, Rule.SPREAD) == {"a": {"n0": 2, "n1": 1}}


def test_too_many_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 devices are wanted, and the nodes have 8: want fewer"):
        place(nodes(2, 4), {}, {"a": 9})


def test_nobody_comes_to_a_closed_node_and_who_is_there_stays() -> None:
    there = (Node("n", 3, closed=True), Node("m", 1))
    present: dict[str, Placement] = {"a": {"n": 3}}
    assert place(there, present, {"a": 3}) == {"a": {"n": 3}}
    assert place(there, present, {"a": 2, "b": 1}) == {"a": {"n": 2}, "b": {"m": 1}}
    assert place(there, present, {"a": 2, "b": 2}) == {"a": {"n": 2}, "b": {"m": 1}}  # one fewer than wanted
    assert place(there[:1], present, {"a": 2, "b": 1}) == {"a": {"n": 2}, "b": {}}
    assert place(there, present, {"a": 2, "b": 2}, spread={"b"}) == {"a": {"n": 2}, "b": {"m": 1}}
    assert place(there, {"a": {"n": 2}}, {"a": 3}, moves=False) == {"a": {"n": 2, "m": 1}}
