"""The short form of tests/soaks/soak.py: random faults of all kinds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["zookeeper", "etcd"])
def test_faults_cost_no_sample_and_leave_nothing(edl, kind):
    options = ["--seconds", "35", "--frameworks", "torch", "--seed", "3", "--no-fixed", "--json"]
    benchmark = [sys.executable, "-m", "tests.soaks.soak", *options]
    environ = {**edl.environ, "EDL_LOCAL_COORDINATOR": kind}
    done = subprocess.run(benchmark, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert sum(result["faults"].values()) >= 4
    assert result["compared"] > 0
    for name in ("different", "lost", "repeated", "wrong", "left_processes", "left_files"):
        assert not result[name], name
