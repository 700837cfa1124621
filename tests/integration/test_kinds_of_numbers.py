"""Each kind of numbers that a model is trained in is averaged, on each ring: what a ring does not take is carried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

JOBS = Path(__file__).parent / "jobs"
WAYS = [
    ("torch_kinds.py", "horovod", ()),
    ("torch_kinds.py", "torch", ()),
    ("tf_kinds.py", "horovod", ()),
    ("tf_kinds.py", "horovod", ("traced",)),
]


@pytest.mark.parametrize(("script", "ring", "more"), WAYS)
def test_gradients_are_those_of_the_global_batch(edl: Any, script: str, ring: str, more: tuple[str, ...]) -> None:
    command = [*edl.warm.command(JOBS / script), *more]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    job = edl.start("run", "-np", "2", "--job", "kinds", "--ring", ring, "--max-restarts", "0", *command, **quiet)
    said, errors = job.communicate(timeout=patient(150))
    assert job.returncode == 0, said + errors
    assert said.count("all kinds, on 2") == 2
    assert "batch_voided" not in {event["kind"] for event in edl.events("kinds")}
