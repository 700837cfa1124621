"""The short form of `tests/soaks/election.py`: the election survives chaos, and the check notices if it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soaks.election_chaos import SERVICES

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def chaos(kind, service, *flags):
    command = [sys.executable, "-m", "tests.soaks.election", "--coordinator", kind, "--only", service, "--json", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


# soak: the same faults, planned: tests/unit/coordination/test_election.py; real leaders die in test_scaling.py
@pytest.mark.soak
@pytest.mark.parametrize(("kind", "service"), SERVICES)
def test_the_election_survives_chaos(kind, service):
    _, result = chaos(kind, service, "--seconds", "12")
    timing = {name for name in result["held"] if "hand-over" in name}  # a figure of a machine at rest
    assert [name for name, held in result["held"].items() if not held and name not in timing] == []
    assert result["writes"]["refused"] > 0, "no stale leader was put to the test"
    assert result["handover_ms"]["median"] < 1000


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["zookeeper", "etcd", "embedded"])
def test_without_the_fence_the_check_fails(kind):
    status, result = chaos(kind, "standalone", "--seconds", "6", "--unfenced")
    assert status == 1
    assert not result["held"]["terms ordered in the log"]
