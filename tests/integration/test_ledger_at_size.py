"""The short form of `benchmarks/ledger.py`: over real sockets no worker waits for leases, and every grant arrives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration]

ROOT = Path(__file__).parents[2]
WORKERS, SECONDS, STEPS_PER_S = 50, 6, 10  # a grant is due within the first three


def bench(*flags):
    command = [sys.executable, "-m", "benchmarks.ledger", "--workers", str(WORKERS), "--json", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.soak  # no step waits in simulated jobs: tests/simulation/test_jobs.py
def test_no_worker_waits_and_every_grant_arrives():
    flags = ("--seconds", str(SECONDS), "--steps-per-s", str(STEPS_PER_S), "--session-timeout", "5", "--processes", "1")
    result = bench("--only", "workers", *flags)
    assert (result["waits"], result["refused"]) == (0, {})
    assert result["grants"] >= 1 and result["grants_not_heard"] == 0
    assert result["grant_ms"]["n"] == WORKERS * result["grants"]
    assert result["least_step"] >= 1 and result["least_ahead"] > 0
    assert result["writes"] <= result["grants"] + 1, "reports of mere progress are no reason to write"


def test_a_ledger_is_as_large_as_its_members_not_as_its_samples():
    result = bench("--only", "size")
    assert result["samples"] == 10**9
    assert result["snapshot_bytes"] < 500 * WORKERS
