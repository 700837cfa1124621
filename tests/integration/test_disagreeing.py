"""Scripts that do not do the same in a job's first mini-batch: one line that names what each worker waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "jobs" / "torch_disagreeing.py"
WAITED: dict[str, tuple[str, str]] = {  # what rank 0 does alone, and what both then wait for
    "wraps": ("waits for a comparison with the other workers", "waits for another worker's model"),
    "reduces": ("loss", "waits for the gradients"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ring", "how"),
    [("horovod", "wraps"), pytest.param("torch", "wraps", marks=pytest.mark.soak), ("horovod", "reduces")],
)
def test_what_rank_0_does_alone_ends_the_job_by_one_line_of_what_each_waits_for(edl, ring: str, how: str):
    command = edl.warm.command(JOB)
    times = ("--step-timeout", "4", "--session-timeout", "6")
    done = edl("run", "-np", "2", "--ring", ring, *times, "--job", "d", *command, how, timeout_s=100)
    assert done.returncode == 1, done.stderr
    (end,) = [event["reason"] for event in edl.events("d") if event["kind"] == "job_failed"]
    assert end.startswith("the workers' scripts do not do the same from the first mini-batch on: rank 0 (")
    assert all(what in end for what in WAITED[how]) and end.count("torch_disagreeing.py:") == 2
    assert "Traceback" not in done.stderr and end in done.stderr
