"""Passes that are left by `break` are the same on all workers, whatever their pace, also on those that come midway."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import Job
from test_paths import check

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# The others differ in what tests of units and of properties show: where a step ends, and what is counted.
WAYS = ["counted", *(pytest.param(way, marks=pytest.mark.soak) for way in ("registered", "dry"))]


@pytest.mark.parametrize("way", WAYS)
def test_all_workers_leave_their_passes_after_the_same_steps(edl: Any, tmp_path: Any, way: str) -> None:
    """Else they would differ in their rate at once, and in their weights a step later: each step compares these."""
    script = ["torch_breaks.py", "--way", way]
    environ: dict[str, Any] = {"EDL_MAX_RESTARTS": "3", "EDL_MAX_NP": "3", "EDL_CHECK_WEIGHTS": "1"}
    check(edl, Job(edl, tmp_path / "out", 2, script=script, **environ))
