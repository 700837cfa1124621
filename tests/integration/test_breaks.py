"""Passes that are left by `break` are the same on all workers, whatever their pace, also on those that come midway."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import Job
from test_paths import check

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# soak: differs in what tests of units and of properties show, that is, where a step ends
WAYS = ["registered", pytest.param("dry", marks=pytest.mark.soak)]


def breaking(edl: Any, tmp_path: Any, way: str) -> Job:
    """Workers that differ do so in their rate at once, and in their weights a step later: each step compares these."""
    environ: dict[str, Any] = {"EDL_MAX_RESTARTS": "3", "EDL_MAX_NP": "3", "EDL_CHECK_WEIGHTS": "1"}
    return Job(edl, tmp_path / "out", 2, script=["torch_breaks.py", "--way", way], **environ)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_all_workers_leave_their_passes_after_the_same_steps(edl: Any, tmp_path: Any, way: str) -> None:
    check(edl, breaking(edl, tmp_path, way))


@pytest.mark.slow
def test_so_they_do_where_each_counts_for_itself_and_all_were_there_from_the_beginning(edl: Any, tmp_path: Any) -> None:
    """A newcomer knows nothing of such a count: it differs, unless the others' passes have shown by then how long they
    are (tests/property/test_passes.py).
    """
    job = breaking(edl, tmp_path, "counted")
    job.wait_size(2)
    job.wait_steps(20)
    job.finish()
    job.expect_equal_models()
