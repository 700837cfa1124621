"""`edl.protocol.data_nouns`: each sample of a step in one part, by position alone."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.protocol.data_nouns import Lease, Range, bounds_of, held_by

VIRTUAL = st.integers(1, 12)


@given(VIRTUAL, st.integers(1, 20))
def test_each_virtual_worker_is_one_workers_and_shares_differ_by_one(virtual: int, size: int) -> None:
    held = [range(*held_by(rank, size, virtual)) for rank in range(size)]
    assert [one for run in held for one in run] == list(range(virtual))
    assert max(map(len, held)) - min(map(len, held)) <= 1


@given(VIRTUAL, st.integers(1, 9), st.data())
def test_a_step_is_cut_into_parts_none_of_a_single_sample_where_others_can_take_it(virtual, part, data) -> None:
    batch = virtual * part + data.draw(st.integers(0, virtual - 1))
    samples = data.draw(st.integers(1, batch))
    bounds = bounds_of(samples, batch, virtual)
    sizes = [stop - start for start, stop in pairwise(bounds)]
    assert len(sizes) == virtual
    assert bounds[0] == 0
    assert bounds[-1] == samples
    assert min(sizes) >= 0
    whole = bounds_of(batch, batch, virtual)
    if samples == batch:
        assert max(sizes) - min(sizes) <= 1
    elif samples > 1 and part > 1:
        assert 1 not in sizes
    full = [start for start, stop in pairwise(whole) if stop < samples]
    assert list(bounds[: len(full)]) == full, "parts before the last are those of a whole step"


@pytest.mark.parametrize(
    ("samples", "bounds"),
    [(16, [0, 4, 8, 12, 16]), (11, [0, 4, 8, 11, 11]), (9, [0, 4, 9, 9, 9]), (1, [0, 1, 1, 1, 1])],
)
def test_a_short_step_fills_parts_of_the_usual_size(samples: int, bounds: list[int]) -> None:
    assert list(bounds_of(samples, 16, 4)) == bounds


@given(VIRTUAL, st.integers(1, 5), st.integers(1, 100), st.integers(1, 12))
def test_leases_of_all_workers_together_give_each_step_its_positions(virtual, part, total, size) -> None:
    batch = virtual * part
    lease = Lease(1, 10, -(-total // batch), batch, (Range(2, 0, total),), 2, final=True)
    for step in range(11, lease.until_step + 1):
        parted = []
        for rank in range(size):
            own = msgspec.structs.replace(lease, part=(*held_by(rank, size, virtual), virtual))
            pieces = own.between(step - 1, step)
            assert sum(map(len, pieces)) == own.share(step)
            parted += [at for piece in pieces for at in range(piece.start, piece.stop)]
            assert own.up_to(step).share(step) == own.share(step)
        assert parted == list(range((step - 11) * batch, min((step - 10) * batch, total)))
