"""PyTorch in changing rings of real Horovod: equal weights, and those of a single worker on the same batches."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet
from rings import check_changing_rings

pytestmark = pytest.mark.integration


@pytest.fixture(params=["sgd", "adam", "adamw", "clipped", "lbfgs"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with Fleet("torch_worker.py", 4, request.param) as fleet:
        yield fleet


@pytest.mark.timeout(400)
def test_weights_are_those_of_one_worker_on_the_global_batches(fleet: Fleet) -> None:
    check_changing_rings(fleet, random.Random(7))
    a_parameter_without_gradient_on_some_workers(fleet)
    horovod_knows_of_hosts(fleet)


def a_parameter_without_gradient_on_some_workers(fleet: Fleet) -> None:
    """It takes part in the all-reduce all the same, with zeros: nobody waits, and all stay equal."""
    fleet.form([0, 1])
    fleet.together([0, 1], "synchronize", [(0,), (0,)])
    fleet.together([0, 1], "weight", [(0.5,), (0.5,)])
    batch = [[1.0] * 6], [1.0]
    assert fleet.together([0, 1], "train", [(*batch, True), (*batch, False)]) == ["", ""]
    first, second = fleet.together([0, 1], "weights")
    assert first == second


def horovod_knows_of_hosts(fleet: Fleet) -> None:
    """What scripts ask Horovod itself, though each worker passes for a host of its own while the ring forms."""
    names = ("local_rank", "local_size", "cross_rank", "cross_size")
    seats = [(0, 2, 0, 2), (1, 2, 0, 1), (0, 1, 1, 2)]
    fleet.form([2, 0, 1], hosts=[dict(zip(names, seat, strict=True)) for seat in seats])
    assert fleet.together([2, 0, 1], "hosts") == [list(seat) for seat in seats]
    fleet.form([0, 1])
    assert fleet.together([0, 1], "hosts") == [[0, 1, 0, 1]] * 2
