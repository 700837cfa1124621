"""Learning rates that follow the batch and a schedule, in TensorFlow's optimizers.

PyTorch: tests/unit/trainer/test_rate_factors.py.
"""

from __future__ import annotations

import json
import subprocess
from itertools import accumulate
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parent / "jobs" / "scaled_rates.py"


@pytest.mark.slow
def test_each_update_is_made_with_its_rate_and_the_scripts_own_schedule_goes_on(edl):
    done = subprocess.run(edl.warm.command(SCRIPT), env=edl.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    edl.wait_nothing_left()  # its daemon ends after it
    found = json.loads(done.stdout.splitlines()[-1])
    # 0.1, times 3 for the batch, times what the schedule has for the middle of each of six steps.
    made = [0.3 * factor for factor in (1 / 6, 1 / 2, 5 / 6, 1, 1, 5 / 12)]
    assert found["graph"] == after(made[:2])
    assert found["eager"] == found["scaled"] == after(made[2:4])
    assert found["adam"] == after(made[2:4], rel=1e-3)
    assert found["function"] == after([made[2], made[3] / 2])  # its own schedule halves the rate
    assert found["fit"] == after(made[4:])
    assert found["rate"] == [pytest.approx(0.1)]  # as the script reads it


def after(updates, rel=1e-6):
    """A weight that began at 0, after each of the updates by a gradient of 1."""
    return pytest.approx([-total for total in accumulate(updates)], rel=rel)
