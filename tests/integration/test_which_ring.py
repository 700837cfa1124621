"""`--ring auto` where there is no Horovod: the job trains on PyTorch's own process groups, and is told so once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LINE = "Horovod is not installed: gradients are averaged by PyTorch's own process groups (--ring torch)"


class Cold(Job):
    """A Python that has imported Horovod already would find it."""

    def run(self, script: Path) -> list[str]:
        return [sys.executable, str(script)]


@pytest.mark.slow
def test_a_job_without_horovod_trains_and_refuses_a_worker_that_has_it(edl, tmp_path, monkeypatch) -> None:
    site = tmp_path / "site"  # a folder of Horovod's name, without its library, hides the real one
    (site / "horovod").mkdir(parents=True)
    (site / "horovod" / "__init__.py").touch()
    job = Cold(edl, tmp_path / "out", workers=2, PYTHONPATH=f"{site}:{edl.environ.get('PYTHONPATH', '')}")
    assert job.wait_size(2)["ring"] == "torch"
    done = subprocess.run(
        job.command,
        env={**edl.environ, **job.environ, "EDL_JOB": "s"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(90),
        check=False,
    )
    assert done.returncode != 0
    assert "the job trains with --ring torch, not horovod: say the same on all workers" in done.stderr
    said, communicate = [], job.launcher.communicate

    def kept(**given: Any) -> tuple[str, str]:
        out, err = communicate(**given)
        said.append(err)
        return out, err

    monkeypatch.setattr(job.launcher, "communicate", kept)
    (started,) = [event for event in job.finish() if event["kind"] == "job_started"]
    assert started["ring"] == "torch"
    assert "".join(said).count(LINE) == 1
    job.expect_exactly_once()
    job.expect_equal_models()
