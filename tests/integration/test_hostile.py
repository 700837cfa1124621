"""The short form of tests/soaks/hostile.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.mark.soak  # refusals: tests/unit/transport/test_seal.py, test_rendezvous.py, test_security.py
def test_what_a_stranger_sends_is_refused_and_counted_and_the_job_goes_on(edl):
    benchmark = [sys.executable, "-m", "tests.soaks.hostile", "--inputs", "1200", "--switches", "1", "--json"]
    done = subprocess.run(benchmark, env=edl.environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["inputs"] >= 1200
    assert {"unauthentic", "version", "job", "term", "recipient", "replayed", "unknown_method"} <= set(
        result["counted"]
    )
    assert any(reason.startswith("rendezvous_") for reason in result["counted"])
    assert result["steps_during"] > 0
