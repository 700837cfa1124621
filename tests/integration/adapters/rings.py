"""What any framework must do in changing rings; `fleet` has four workers, the last of which trains alone."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from fleet import Fleet

ALONE = 3
Batch = tuple[list[list[float]], list[float]]


def check_changing_rings(fleet: Fleet, source: random.Random) -> None:
    """Rings of 2, 3 and 2 workers do what one worker does that trains on the global batches."""
    members = [0, 1, 2, ALONE]
    fleet.together([1, 2, ALONE], "disturb")  # rehearsals, in rings of one: whatever they leave must not matter
    fleet.form(members)
    fleet.together(members, "synchronize", [(0,)] * 4)
    check_equal(fleet, members)
    fleet.form([ALONE])
    fleet[ALONE].call("weight", 1.0)

    train_and_compare(fleet, [0, 1], [(3, 5), (4, 4), (1, 7)], source)

    fleet.form([2])
    fleet[2].call("weight", 1.0)
    fleet[2].call("disturb")  # a newcomer rehearses in a ring of its own
    fleet.form([1, 2, 0])
    fleet.together([1, 2, 0], "synchronize", [(2,)] * 3)  # from a root that is not rank 0
    check_equal(fleet, [0, 1, 2])
    train_and_compare(fleet, [1, 2, 0], [(2, 2, 2), (5, 0, 3), (1, 2, 4)], source, form=False)

    train_and_compare(fleet, [2, 0], [(0, 6), (3, 3)], source)


def train_and_compare(
    fleet: Fleet, members: list[int], shares: list[tuple[int, ...]], source: random.Random, form: bool = True
) -> None:
    """One step per entry of `shares`, each the numbers of samples of the members."""
    if form:
        fleet.form(members)
    for counts in shares:
        batches = [batch(source, count) for count in counts]
        total = sum(counts)
        fleet.together(members, "weight", [(count / total,) for count in counts])
        assert fleet.together(members, "train", list(batches)) == [""] * len(members)
        assert fleet[ALONE].call("train", *joined(batches)) == ""
        mine = check_equal(fleet, members)
        check_close(mine, fleet[ALONE].call("weights"))


def batch(source: random.Random, samples: int) -> Batch:
    return [[source.uniform(-1, 1) for _ in range(6)] for _ in range(samples)], [source.uniform(-1, 1)] * samples


def joined(batches: list[Batch]) -> Batch:
    return [row for x, _ in batches for row in x], [value for _, y in batches for value in y]


def check_equal(fleet: Fleet, members: list[int]) -> Any:
    """Bit for bit, weights and the optimizer's state."""
    weights, *others = fleet.together(members, "weights")
    assert all(other == weights for other in others)
    slots, *others = fleet.together(members, "slots")
    assert all(other == slots for other in others)
    return weights


def check_close(weights: list[float], expected: list[float]) -> None:
    """Within 1e-5 of each other, relative to the size of all."""
    distance = math.dist(weights, expected)
    size = math.hypot(*expected)
    assert distance <= 1e-5 * size, f"{distance} apart, of {size}"


def the_noise_of_gradients_is_what_their_norms_say(fleet: Fleet, source: random.Random) -> None:
    """With parts of different sizes, and where one worker has none. All hear the same numbers."""
    fleet.form([0, 1])
    fleet.together([0, 1], "synchronize", [(0,), (0,)])
    for parts in ((1, 3), (2, 0)):
        shares = [part / sum(parts) for part in parts]
        fleet.together([0, 1], "weight", [(share,) for share in shares])
        (one, found), (other, same) = fleet.together([0, 1], "noise", [batch(source, part) for part in parts])
        assert found == same
        if not all(parts):
            assert found is None, "of one gradient alone nothing can be told"
            continue
        whole = sum((shares[0] * a + shares[1] * b) ** 2 for a, b in zip(one, other, strict=True))
        own = sum(value**2 for value in (*one, *other)) / 2
        var = (own - whole) / (sum(1 / share for share in shares) / 2 - 1)
        assert found == pytest.approx([whole - var, var], rel=1e-3)
