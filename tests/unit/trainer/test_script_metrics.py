"""`edl.trainer.script_metrics`: random numbers of an evaluation, whichever worker computes which batch of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from edl.trainer.script_metrics import Measuring, ScriptMetrics


@pytest.fixture(autouse=True)
def random_numbers() -> Iterator[None]:
    before = random.getstate()
    yield
    random.setstate(before)


def evaluated(*shares: list[int]) -> tuple[dict[str, Any], set[float]]:
    """Return what workers of these shares find together, and the number that each of them draws next."""
    works: list[Measuring] = []

    def computed(work: Measuring) -> list[bytes]:
        work.compute(shares[len(works)], lambda: True)
        works.append(work)
        return [one.found() for one in works]

    nothing: Any = None
    ends: Any = SimpleNamespace(evaluate=computed)
    metrics = ScriptMetrics(nothing, nothing, ends, lambda: None, random.seed)
    found, after = {}, set()
    for _ in shares:
        found = metrics.evaluate(lambda ids: {"noise": random.random() * len(ids)}, 11, 4)
        after.add(random.random())
    return found, after


def test_batches_of_an_evaluation_have_numbers_of_their_own_and_all_workers_the_same_ones_after_it() -> None:
    alone, after = evaluated([0, 1, 2])
    assert evaluated([0, 1], [2]) == evaluated([2, 1], [0], []) == (alone, after)
    assert len(after) == 1
