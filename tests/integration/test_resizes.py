"""The short form of benchmarks/resizes.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


def test_random_changes_of_size_cost_no_sample_and_no_difference(edl):
    options = ["--torch", "4", "--tensorflow", "0", "--most", "3", "--no-fixed", "--json"]
    benchmark = [sys.executable, "-m", "benchmarks.resizes", *options]
    done = subprocess.run(benchmark, env=edl.environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["switches"] >= 4  # newcomers may come one after the other
    assert result["compared"] > result["switches"]
    assert result["forced"] == 0
