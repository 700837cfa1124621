"""The short form of benchmarks/partition.py: three hosts, of which one is cut off and comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
NAMESPACES = Path("/run/netns")


@pytest.mark.parametrize("case", ["leader"])
def test_a_host_that_is_cut_off_costs_no_sample_and_ends_when_it_comes_back(edl, case):
    before = set(NAMESPACES.glob("edl*"))
    benchmark = [sys.executable, "-m", "benchmarks.partition", "--cases", case, "--json"]
    done = subprocess.run(benchmark, env=edl.environ, cwd=ROOT, capture_output=True, text=True, check=False)
    if "hosts cannot be made here" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = json.loads(done.stdout)
    assert result["lost"] and result["codes"] == [1]
    assert result["size"] == 2 and result["steps_meanwhile"] > 0
    assert set(NAMESPACES.glob("edl*")) == before
