"""Learning rates that follow the batch: real optimizers of TensorFlow. PyTorch: tests/unit/test_rate.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parent / "jobs" / "scaled_rates.py"


def test_each_update_is_made_with_the_scaled_rate_and_the_schedule_goes_on(edl):
    done = subprocess.run([sys.executable, str(SCRIPT)], env=edl.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    edl.wait_nothing_left()  # its daemon ends after it
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["eager"] == pytest.approx([-0.3, -0.6])
    assert found["function"] == pytest.approx([-0.3, -0.45])  # its own schedule halves the rate
    assert found["scaled"] == pytest.approx([-0.3, -0.6])
    assert found["adam"] == pytest.approx([-0.3, -0.6], rel=1e-3)
    assert found["rate"] == pytest.approx(0.1)  # as the script reads it
