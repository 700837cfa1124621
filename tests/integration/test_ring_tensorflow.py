"""TensorFlow in changing rings of real Horovod: equal weights, and those of a single worker on the same batches.

Everything is traced in a ring of one, before any other ring is there.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet
from rings import check_changing_rings, the_noise_of_gradients_is_what_their_norms_say
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("eager", "clipped"),
        ("graph", "adam"),
        # soak: kernels are in tests/unit/tensorflow/test_kernels.py, `function` and `fit` in test_job_equality.py
        *(
            pytest.param(*one, marks=pytest.mark.soak)
            for one in [("function without kernels", "clipped"), ("fit", "clipped"), ("function", "adam")]
        ),
    ],
)
def test_weights_are_those_of_one_worker_on_the_global_batches(warm: WarmPython, way: str, kind: str) -> None:
    with Fleet(warm, "tensorflow_worker.py", 4, way, kind) as fleet:
        source = random.Random(7)
        check_changing_rings(fleet, source)
        fleet.form([0, 1])
        for members in ([0, 1], [3]):
            a_step_without_samples_changes_nothing(fleet, members)
        if way != "graph":
            the_noise_of_gradients_is_what_their_norms_say(fleet, source)
        if way == "eager":
            variables_that_some_losses_do_not_depend_on(fleet)
            collectives_of_a_script_may_come_beside_ours(fleet)


def a_step_without_samples_changes_nothing(fleet: Fleet, members: list[int]) -> None:
    """Though momentum, moments and weight decay would change weights with gradients of zero, and a count goes on."""
    before = [fleet.together(members, what) for what in ("weights", "slots")]
    stand_ins = [[1.0] * 6], [1.0]
    for _ in range(2):
        assert fleet.together(members, "train_without_samples", [stand_ins] * len(members)) == [""] * len(members)
    assert [fleet.together(members, what) for what in ("weights", "slots")] == before
    fleet.together(members, "weight", [(1 / len(members),)] * len(members))
    assert fleet.together(members, "train", [stand_ins] * len(members)) == [""] * len(members)
    assert fleet.together(members, "weights") != before[0]


def collectives_of_a_script_may_come_beside_ours(fleet: Fleet) -> None:
    fleet.form([0, 1])
    assert fleet.together([0, 1], "ask_beside", [(True,), (False,)]) == [[0.5, True]] * 2


def variables_that_some_losses_do_not_depend_on(fleet: Fleet) -> None:
    """On one worker: it takes part with zeros. On all: the optimizer sees no gradient, so that none decays."""
    for worker in (0, 1):
        fleet.form([worker])
        fleet[worker].call("branches", [0])  # a rehearsal: what is sparse is known
    fleet.form([0, 1])
    fleet.together([0, 1], "synchronize", [(0,), (0,)])
    fleet.together([0, 1], "weight", [(0.25,), (0.75,)])
    one: list[Any] = []
    for _ in range(2):
        one, other = fleet.together([0, 1], "branches", [([0, 1],), ([1, 2],)])
        assert one == other
    error, table, first, second, nobodys = one
    assert error == ""
    assert table[0][0] < table[1][0] < 1.0  # the second row only decays
    assert first < second < 1.0
    assert nobodys == 1.0
    fleet.together([0, 1], "weight", [(1.0,), (0.0,)])
    one, other = fleet.together([0, 1], "branches", [([0, 1],), ([2],)])  # the other's samples are stand-ins
    assert one == other
    assert one[3] == second
