"""Which gradients travel together."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edl.errors import RingBroken
from edl.protocol.leader_messages import GRADIENTS
from edl.torch.buckets import FIRST_BYTES, FULL_BYTES, LARGE_BYTES, Buckets, cut
from edl.torch.tensor_ring import scaled_rows


def of(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """So many bytes."""
    return torch.empty(size // 4, dtype=dtype)


def places(parameters: list[torch.Tensor]) -> list[list[int]]:
    known = {id(parameter): place for place, parameter in enumerate(parameters)}
    return [[known[id(one)] for one in bucket] for bucket in cut(parameters)]


def test_the_last_ones_begin_first_and_the_first_bucket_is_soon_full() -> None:
    parameters = [of(FIRST_BYTES // 4) for _ in range(10)]
    assert places(parameters) == [[9, 8, 7, 6], [5, 4, 3, 2, 1, 0]]
    assert places(parameters * (FULL_BYTES // FIRST_BYTES))[0] != []


def test_a_large_one_travels_alone_and_holds_up_no_small_ones() -> None:
    """A layer has a large matrix and a small bias: the biases of all layers share a bucket."""
    assert places([of(LARGE_BYTES), of(64), of(2 * LARGE_BYTES), of(64)]) == [[2], [0], [3, 1]]


def test_a_bucket_has_one_type() -> None:
    half = [of(64, torch.bfloat16) for _ in range(2)]
    assert places([of(64), *half, of(64), of(64)]) == [[4, 3], [2, 1], [0]]


def test_nothing_and_one() -> None:
    assert places([]) == []
    assert places([of(0)]) == [[0]]


@pytest.mark.parametrize("factor", [0.0, 1.0, 0.5])
def test_what_weighs_nothing_is_zeros_though_it_was_nan(factor: float) -> None:
    rows = torch.sparse_coo_tensor(
        torch.tensor([[2, 0, 2]]), torch.tensor([[1.0], [4.0], [1.0]]), (3, 1), check_invariants=False
    )
    assert scaled_rows(rows, factor).to_dense().flatten().tolist() == [4 * factor, 0.0, 2 * factor]
    assert rows.to_dense().flatten().tolist() == [4.0, 0.0, 2.0]
    assert not scaled_rows(rows * float("nan"), 0.0).to_dense().any()


class TwoAlike:
    """The groups of a ring of two, whose other member has the same gradients."""

    def __init__(self) -> None:
        self.place = SimpleNamespace(size=2)
        self.gradients = object()
        self.sent: list[torch.Tensor] = []
        self.settled = 0
        self.compared = 0

    def of_all_begun(self, mine: bytes, group: object) -> tuple[Any, Callable[[], list[bytes]]]:
        assert group is self.gradients
        self.compared += 1
        return SimpleNamespace(is_completed=lambda: True), lambda: [mine, mine]

    def wait(self, work: Any, what: str) -> None:
        assert what == GRADIENTS

    def look_at_sums(self) -> None:
        """Nothing is open."""

    def sum_begun(self, tensor: torch.Tensor) -> Callable[[], object]:
        self.sent.append(tensor)
        return lambda: tensor.mul_(2)

    def settle(self) -> None:
        self.settled += 1


def reduced(buckets: Buckets, parameters: list[torch.Tensor], gradients: dict[int, torch.Tensor]) -> None:
    buckets.expect(parameters)
    for place, gradient in gradients.items():
        buckets.begin(parameters[place], gradient, str(place), 1.0)
    buckets.flush()
    buckets.wait()
    buckets.drop()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whichever_gradients_are_there_each_gets_its_own_back(dtype: torch.dtype) -> None:
    groups = TwoAlike()
    buckets = Buckets(SimpleNamespace(groups=groups, overlaps=True))
    shapes = [(3, 4), (), (2, 3, 2, 2), (5,)]
    parameters = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    for here in ([0, 1, 2, 3], [2, 3], [1, 2], [0, 1, 2, 3], [0, 1, 2, 3]):
        before = {place: torch.randint(-8, 8, shapes[place]).to(dtype) for place in here}
        gradients = {place: one.clone() for place, one in before.items()}
        if 2 in gradients:
            gradients[2] = gradients[2].to(memory_format=torch.channels_last)
        lying = {place: one.data_ptr() for place, one in gradients.items()}
        reduced(buckets, parameters, gradients)
        assert all(torch.equal(gradients[place], one) for place, one in before.items())
        assert {place: one.data_ptr() for place, one in gradients.items()} == lying
    assert groups.sent[-1].data_ptr() == groups.sent[-2].data_ptr() != groups.sent[1].data_ptr()
    assert groups.settled == 5


class Breaking(TwoAlike):
    """A ring that breaks before its members know that they are alike."""

    def of_all_begun(self, mine: bytes, group: object) -> tuple[Any, Callable[[], list[bytes]]]:
        return SimpleNamespace(is_completed=lambda: False), lambda: [mine, mine]

    def wait(self, work: Any, what: str) -> None:
        raise RingBroken("a peer is gone")


def test_what_a_ring_that_broke_has_left_is_not_asked_of_the_next_ones_groups() -> None:
    seat = SimpleNamespace(groups=Breaking(), overlaps=True)
    buckets, parameters = Buckets(seat), [torch.zeros(3, requires_grad=True)]
    with pytest.raises(RingBroken):
        reduced(buckets, parameters, {0: torch.ones(3)})
    buckets.drop()
    seat.groups.gradients = None  # that ring is closed
    seat.groups = SimpleNamespace(place=SimpleNamespace(size=1))
    buckets.wait()  # a ring of one reduces nothing
    buckets.drop()
    seat.groups = TwoAlike()
    reduced(buckets, parameters, {0: torch.ones(3)})
    assert seat.groups.compared == 1 and len(seat.groups.sent) == 1
