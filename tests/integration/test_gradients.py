"""Gradients after `backward()` are those of one process on the same global batch: models of many kinds, uneven shares.

All models are trained in the same two processes, on each ring. A worker without samples computes on one that is not its
own, and has no share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet, WorkerFailed
from gradient_cases import CASES, SAMPLES
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SHARES = (5, 5, 1, 8, 4)  # samples of the first worker, step after step


@pytest.fixture(scope="module", params=["horovod", "torch"])
def fleet(request: pytest.FixtureRequest, warm: WarmPython) -> Iterator[Fleet]:
    with Fleet(warm, "torch_gradients.py", 2, ring=request.param) as fleet:
        fleet.form([0, 1])
        yield fleet


def parts(first: int) -> list[tuple[list[int], float]]:
    cut = list(range(first)), list(range(first, SAMPLES))
    return [(own or [0], len(own) / SAMPLES) for own in cut]


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_one_process(fleet: Fleet, name: str) -> None:
    if name not in fleet[0].call("names"):
        pytest.skip("Horovod has no sum of this type")
    fleet.together([0, 1], "begin", [(name,)] * 2)
    found = []
    for first in SHARES:
        try:
            found.append(fleet.together([0, 1], "step", parts(first)))
        except WorkerFailed as error:
            pytest.fail(f"{first} of {SAMPLES}: {error}")
    assert found == [["", ""]] * len(SHARES)


def test_weights_are_those_of_rank_0_once_a_model_is_wrapped(fleet: Fleet) -> None:
    fleet.together([0, 1], "begin", [("two layers", 1), ("two layers", 2)])
    mine, others = fleet.together([0, 1], "weights")
    assert mine == others == fleet[1].call("weights", 1)


def test_models_that_differ_are_refused_on_all_workers_with_both_sides_named(fleet: Fleet) -> None:
    for member in (0, 1):
        fleet[member].send("begin", ("one layer", "two layers")[member])
    for member in (0, 1):
        with pytest.raises(
            WorkerFailed, match=r"model of rank 1 is not that of rank 0: 0\.weight .* on rank 1, weight"
        ):
            fleet[member].answer()
