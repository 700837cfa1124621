"""What scripts of PyTorch use today goes through growth, a kill and a shrink: equal models, and no sample lost."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import Job
from test_paths import check

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.mark.slow
@pytest.mark.parametrize("way", [*(pytest.param(way, marks=pytest.mark.soak) for way in ("images", "gan")), "prepared"])
def test_it_stays_equal(edl: Any, tmp_path: Any, way: str) -> None:
    script = ["torch_today.py", "--way", way]
    job = Job(edl, tmp_path / "out", 2, script=script, EDL_MAX_RESTARTS="3", EDL_MAX_NP="3")
    check(edl, job)
