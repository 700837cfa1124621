"""PyTorch in changing rings, of Horovod and of torch's groups: equal weights, and those of a single worker."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet
from rings import (
    ALONE,
    batch,
    check_changing_rings,
    check_close,
    check_equal,
    joined,
    the_noise_of_gradients_is_what_their_norms_say,
)
from warm_python import WarmPython

pytestmark = pytest.mark.integration


RINGS = ["horovod", "torch"]


# soak: steps of AdamW and LBFGS are in test_ring_torch_optimizer.py, Adam's state in test_checkpoints.py
SOAKS = [pytest.param(kind, marks=pytest.mark.soak) for kind in ("adam", "adamw", "lbfgs")]


@pytest.fixture(params=["sgd", "clipped", *SOAKS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fleet(warm: WarmPython, kind: str, ring: str) -> Iterator[Fleet]:
    with Fleet(warm, "torch_worker.py", 4, kind, ring=ring) as fleet:
        yield fleet


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ring", RINGS)
def test_weights_are_those_of_one_worker_on_the_global_batches(fleet: Fleet, kind: str, ring: str) -> None:
    source = random.Random(7)
    check_changing_rings(fleet, source)
    a_parameter_without_gradient_on_some_workers(fleet)
    a_step_without_samples_changes_nothing(fleet, [0, 1])
    a_step_without_samples_changes_nothing(fleet, [ALONE])
    if kind == "sgd":
        gradients_are_averaged_when_backward_returns(fleet, source)
        the_noise_of_gradients_is_what_their_norms_say(fleet, source)
    scripts_learn_of_hosts(fleet)
    if ring == "horovod":
        fleet.form([0, 1])
        assert fleet.together([0, 1], "ask_beside", [(True,), (False,)]) == [[0.5, True]] * 2


@pytest.mark.timeout(120)
def test_horovods_names_mean_the_same_in_both_rings(warm: WarmPython) -> None:
    with (
        Fleet(warm, "torch_worker.py", 3, "plain") as known,
        Fleet(warm, "torch_worker.py", 3, "plain", ring="torch") as own,
    ):
        for members in ([2], [0, 1, 2]):
            for fleet in (known, own):
                fleet.form(members)
            expected = known.together(members, "collectives")
            found = own.together(members, "collectives")
            assert found == expected


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ring", RINGS)
def test_workers_may_differ_in_their_passes_of_backward(warm: WarmPython, ring: str) -> None:
    """With `backward_passes_per_step=2`, and a script that reports its loss before the update."""
    source = random.Random(8)
    with Fleet(warm, "torch_worker.py", 3, "passes", ring=ring) as fleet:
        fleet.form([0, 1, 2])
        fleet.together([0, 1, 2], "synchronize", [(0,)] * 3)
        fleet.form([2])
        fleet.form([0, 1])
        fleet.together([0, 1], "weight", [(0.75,), (0.25,)])
        first, second, third = (batch(source, samples) for samples in (2, 1, 1))
        mine, other = fleet.together([0, 1], "parts", [([(*first, 2 / 3), (*second, 1 / 3)],), ([(*third, 1.0)],)])
        assert mine == other
        check_close(mine, fleet[2].call("parts", [(*joined([first, second, third]), 1.0)]))


def a_parameter_without_gradient_on_some_workers(fleet: Fleet) -> None:
    """It takes part in the all-reduce all the same, with zeros: none waits, and all stay equal."""
    fleet.form([0, 1])
    fleet.together([0, 1], "synchronize", [(0,), (0,)])
    fleet.together([0, 1], "weight", [(0.5,), (0.5,)])
    batch = [[1.0] * 6], [1.0]
    assert fleet.together([0, 1], "train", [(*batch, True), (*batch, False)]) == ["", ""]
    first, second = fleet.together([0, 1], "weights")
    assert first == second


def a_step_without_samples_changes_nothing(fleet: Fleet, members: list[int]) -> None:
    """Though momentum, moments and weight decay would change weights with gradients of zero."""
    before = [fleet.together(members, what) for what in ("weights", "slots")]
    fleet.together(members, "weightless")
    stand_ins = [[1.0] * 6], [1.0]
    assert fleet.together(members, "train", [stand_ins] * len(members)) == [""] * len(members)
    assert [fleet.together(members, what) for what in ("weights", "slots")] == before
    fleet.together(members, "weight", [(1 / len(members),)] * len(members))


def gradients_are_averaged_when_backward_returns(fleet: Fleet, source: random.Random) -> None:
    """In each way in which scripts call it, to the bit the same on all, and those of the global batch."""
    fleet.together([0, 1], "weight", [(0.25,), (0.75,)])
    for way in ("plain", "twice", "no_sync", "create_graph", "checkpointed"):
        fleet.form([0, 1, ALONE])
        fleet.together([0, 1, ALONE], "synchronize", [(0,)] * 3)
        fleet.form([ALONE])
        fleet[ALONE].call("weight", 1.0)
        fleet.form([0, 1])
        batches = [batch(source, samples) for samples in (1, 3)]
        mine, other = fleet.together([0, 1], "backward", [(way, *one) for one in batches])
        assert mine == other, way
        check_close(mine, fleet[ALONE].call("backward", way, *joined(batches)))
        check_equal(fleet, [0, 1])


def scripts_learn_of_hosts(fleet: Fleet) -> None:
    """What they ask by Horovod's names, for which each worker passes for a host of its own while the ring forms."""
    names = ("local_rank", "local_size", "cross_rank", "cross_size")
    seats = [(0, 2, 0, 2), (1, 2, 0, 1), (0, 1, 1, 2)]
    fleet.form([2, 0, 1], hosts=[dict(zip(names, seat, strict=True)) for seat in seats])
    assert fleet.together([2, 0, 1], "hosts") == [list(seat) for seat in seats]
    fleet.form([0, 1])
    assert fleet.together([0, 1], "hosts") == [[0, 1, 0, 1]] * 2
