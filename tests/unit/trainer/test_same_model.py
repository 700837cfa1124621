"""Members of a ring whose models differ: all say the same, and name both sides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import UsageError
from edl.trainer.first_state import check_same, difference


class Ring:
    """Of members whose parts these are; this one is `rank`."""

    def __init__(self, rank: int, by_rank: list[list[str]]) -> None:
        self.place = SimpleNamespace(rank=rank, size=len(by_rank))
        self.by_rank, self.asked = by_rank, 0

    def same(self, value: int) -> Any:
        self.asked = value
        return lambda: all(one == self.by_rank[0] for one in self.by_rank)

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        import msgspec

        return msgspec.msgpack.encode(self.by_rank[root]) if payload is None else payload


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_all_members_raise_the_same_line(rank: int) -> None:
    by_rank = [["weight (3)", "bias (1)"], ["weight (3)", "bias (1)"], ["weight (4)", "bias (1)"]]
    ring: Any = Ring(rank, by_rank)
    with pytest.raises(UsageError) as caught:
        check_same(ring, by_rank[rank])
    assert "the model of rank 2 is not that of rank 0: weight (4) on rank 2, weight (3) on rank 0" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equal_models_cost_one_number() -> None:
    first, second = (Ring(rank, [["a"], ["a"]]) for rank in range(2))
    for ring in (first, second):
        untyped: Any = ring
        check_same(untyped, ["a"])
    assert first.asked == second.asked < 2**64


def test_another_number_of_parts() -> None:
    assert difference([["a"], ["a", "b"]]).endswith("b on rank 1, nothing more on rank 0")
    assert difference([["a", "b"], ["a"]]).endswith("nothing more on rank 1, b on rank 0")
