"""The last step of an epoch, with fewer samples than others and not as many for each worker.

The gradient that three workers of a real ring apply, with the shares that a real ledger deals out, is the one that a
single worker gets from the same samples.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet
from rings import ALONE, Batch, batch, joined
from warm_python import WarmPython

from edl.core.data.ledgers import new_ledger
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import DataSpec
from edl.trainer.data.shared_leases import SharedLeases

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TOGETHER, BATCH = [0, 1, 2], 4
NEAR = 1e-6  # of the largest component
WAYS = {
    "torch": ["torch_worker.py", "plain"],
    "eager": ["tensorflow_worker.py", "eager", "plain"],
    "function": ["tensorflow_worker.py", "function", "plain"],
    "fit": ["tensorflow_worker.py", "fit", "plain"],
    "graph": ["tensorflow_worker.py", "graph", "plain"],
}


SOAKS = {"function", "fit"}  # soak: jobs of theirs are compared with one worker in test_job_equality.py


@pytest.fixture(params=[pytest.param(way, marks=pytest.mark.soak) if way in SOAKS else way for way in WAYS])
def fleet(request: pytest.FixtureRequest, warm: WarmPython) -> Iterator[Fleet]:
    """Three in a ring, one alone, all with the same model, which their steps leave as it is."""
    script, *arguments = WAYS[request.param]
    with Fleet(warm, script, 4, *arguments) as fleet:
        members = [*TOGETHER, ALONE]
        fleet.form(members)
        fleet.together(members, "synchronize", [(0,)] * 4)
        fleet.form([ALONE])
        fleet[ALONE].call("weight", 1.0)
        fleet.form(TOGETHER)
        yield fleet


def last_step(left: int) -> tuple[list[int], list[float]]:
    """The workers' samples in the last of three steps, `left` of them in all, and their weights."""
    ledger = new_ledger(DataSpec(2 * 3 * BATCH + left, 1, BATCH), [f"w{index}" for index in TOGETHER])
    ledger.grant(10)
    assert ledger.covered_step == 3
    counts, weights = [], []
    for worker in ledger.roster:
        leases = ledger.leases(worker)
        held = SharedLeases()
        held.adopt(Share(1, 0, leases, ledger.totals(), ledger.covered_step, 1, last=True), (1, 1))
        counts.append(leases[-1].share(3))
        weights.append(held.weight(3))
    return counts, weights


def gradients(fleet: Fleet, batches: list[Batch], weights: list[float]) -> tuple[list[float], list[float]]:
    """That of the ring, and that of the lone worker."""
    fleet.together(TOGETHER, "weight", [(weight,) for weight in weights])
    mine, *others = fleet.together(TOGETHER, "gradient", list(batches))
    assert all(other == mine for other in others)
    return mine, fleet[ALONE].call("gradient", *joined(batches))


def distance(first: list[float], second: list[float]) -> float:
    """Of the gradients, as a part of the largest component."""
    return max(abs(a - b) for a, b in zip(first, second, strict=True)) / max(map(abs, second))


@pytest.mark.slow
def test_its_gradient_is_that_of_a_single_worker(fleet: Fleet) -> None:
    source = random.Random(3)
    for left, expected in [(7, [3, 2, 2]), (5, [3, 2, 0]), (4, [2, 2, 0]), (2, [2, 0, 0]), (1, [1, 0, 0])]:
        counts, weights = last_step(left)
        assert sorted(counts, reverse=True) == expected
        batches = [batch(source, count) for count in counts]
        ring, alone = gradients(fleet, batches, weights)
        assert distance(ring, alone) <= NEAR, f"{counts}: {distance(ring, alone)}"
    counts, _ = last_step(7)
    ring, alone = gradients(fleet, [batch(source, count) for count in counts], [1 / 3] * 3)
    assert distance(ring, alone) > 100 * NEAR  # as it would be without weights
