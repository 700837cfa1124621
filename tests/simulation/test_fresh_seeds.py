"""Jobs that were never played before: from another seed in each run, for a set time.

EDL_FRESH_S sets how many seconds. `scripts/test` does; without it nothing is played here, so that work on something
else is not held up by a fault that another seed has just found.
"""

from __future__ import annotations

import os
import secrets
import sys
import time

import pytest

from benchmarks.simulation import play
from tests.model import SimJob
from tests.model.leader_shells import ShellJob

FRESH_S = float(os.environ.get("EDL_FRESH_S", "0"))
FIRST = secrets.randbelow(10**9)


@pytest.mark.skipif(FRESH_S <= 0, reason="EDL_FRESH_S says for how many seconds fresh seeds are played")
@pytest.mark.timeout(FRESH_S + 120)
def test_no_invariant_breaks_in_jobs_that_were_never_played(capsys: pytest.CaptureFixture[str]) -> None:
    until, seed = time.monotonic() + FRESH_S, FIRST
    with capsys.disabled():
        sys.stdout.write(f"\nfresh seeds from {FIRST}, for {FRESH_S:g} s\n")
    while time.monotonic() < until:
        job_class, flag = (ShellJob, " --shells") if seed % 2 else (SimJob, "")
        for broken, story in play(range(seed, seed + 1), job_class=job_class).failures:
            pytest.fail(f"python -m benchmarks.simulation --first {broken} --seeds 1{flag}\n{story}", pytrace=False)
        seed += 1
