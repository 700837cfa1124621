"""TensorFlow in changing rings of real Horovod: equal weights, and those of a single worker on the same batches.

Everything is traced in a ring of one, before any other ring is there.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet
from rings import check_changing_rings

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "kind"),
    [("eager", "sgd"), ("function", "adam"), ("fit", "sgd"), ("graph", "adam")],
)
def test_weights_are_those_of_one_worker_on_the_global_batches(way: str, kind: str) -> None:
    with Fleet("tensorflow_worker.py", 4, way, kind) as fleet:
        check_changing_rings(fleet, random.Random(7))
