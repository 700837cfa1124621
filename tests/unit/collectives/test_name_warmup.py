"""The names that the members of a prepared ring go through: all the same ones, or none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from edl.collectives.name_warmup import MOST_BYTES, Named, go_through

SMALL = [Named("weight", (64, 10), "float32", 4), Named("bias", (10,), "float32", 4)]
EDGE = [Named("weight", (MOST_BYTES // 4,), "float32", 4)]
MEMBERS = 3


class Together:
    """A ring of members, each on a thread of its own: `largest_in` waits for all of them."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(MEMBERS, timeout=10)
        self._values: list[list[int]] = []
        self.reduced: list[tuple[Any, list[str]]] = []

    def largest_in(self, library: Any, values: list[int], name: str) -> list[int]:
        assert (library, name) == ("spare", "edl.same")
        assert all(-(2**63) <= value < 2**63 for value in values)
        self._values.append(values)
        self._barrier.wait()
        return [max(column) for column in zip(*self._values, strict=True)]

    def reduce_zeros(self, library: Any, tensors: Sequence[Named]) -> None:
        self.reduced.append((library, [one.name for one in tensors]))


def gone_through(*named: list[Named]) -> list[tuple[Any, list[str]]]:
    together = Together()
    threads = [threading.Thread(target=go_through, args=(together, "spare", one)) for one in named]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return together.reduced


def test_all_take_the_same_names_in_the_same_order() -> None:
    assert gone_through(SMALL, SMALL[::-1], SMALL) == [("spare", ["bias", "weight"])] * MEMBERS


@pytest.mark.parametrize(
    "other",
    [
        [],
        SMALL[:1],
        [SMALL[0], Named("bias", (11,), "float32", 4)],
        [SMALL[0], Named("bias", (10,), "bfloat16", 4)],
        [SMALL[0], Named("bias ", (10,), "float32", 4)],
    ],
)
def test_where_one_knows_of_others_no_member_reduces_any(other: list[Named]) -> None:
    assert gone_through(SMALL, other, SMALL) == []


def test_where_there_is_much_to_reduce_one_number_of_each_kind_is_reduced_beside_training() -> None:
    assert gone_through(EDGE, EDGE, EDGE) == [("spare", ["weight"])] * MEMBERS
    more = [*EDGE, Named("bias", (1,), "int8", 1)]
    assert gone_through(more, more, more) == [("spare", ["edl.kind.float32", "edl.kind.int8"])] * MEMBERS
    other = [*EDGE, Named("bias", (1,), "bfloat16", 2)]
    assert gone_through(more, more, other) == [], "a member would wait for the others' kinds"
