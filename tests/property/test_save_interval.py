"""The interval that a job chooses: within its bounds whatever was seen, and going the right way with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.core.checkpoint.due_times import COSTS_KEPT, LONGEST_S, chosen, cost, mean_fault_s
from edl.protocol.checkpoint_record import Auto, Cost

seconds = st.floats(0, 1e5)
costs = st.lists(
    st.builds(Cost, seconds, st.one_of(st.none(), st.floats(-1e5, 1e5)), st.one_of(st.none(), seconds)),
    max_size=COSTS_KEPT,
)
autos = st.builds(Auto, st.floats(1e-4, 1.0), st.floats(0.01, 100), st.floats(1, 1e6))
faults = st.floats(1e-3, 1e9)


@given(autos, costs, faults)
def test_it_is_within_its_bounds(auto: Auto, seen: list[Cost], fault_s: float) -> None:
    found = chosen(auto, seen, fault_s).seconds
    assert auto.least_s <= found <= LONGEST_S
    if seen and found < LONGEST_S:
        assert cost(seen) / found <= auto.overhead * (1 + 1e-9)


@given(autos, costs, faults, st.floats(1, 100))
def test_rarer_faults_never_make_it_shorter(auto: Auto, seen: list[Cost], fault_s: float, times: float) -> None:
    assert chosen(auto, seen, fault_s).seconds <= chosen(auto, seen, fault_s * times).seconds


@given(autos, costs.filter(bool), faults, st.floats(0, 1e4))
def test_what_costs_more_never_makes_it_shorter(auto: Auto, seen: list[Cost], fault_s: float, more_s: float) -> None:
    dearer = [
        Cost(one.stall_s + more_s, None if one.lost_s is None else one.lost_s + more_s, one.took_s) for one in seen
    ]
    assert chosen(auto, seen, fault_s).seconds <= chosen(auto, dearer, fault_s).seconds


@given(autos, st.floats(0, 1e9), st.integers(0, 1000))
def test_each_fault_makes_the_mean_time_shorter(auto: Auto, trained_s: float, number: int) -> None:
    assert 0 < mean_fault_s(auto, trained_s, number + 1) < mean_fault_s(auto, trained_s, number)
