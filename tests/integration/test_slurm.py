"""A job under a real Slurm of one machine, by the batch script of docs/slurm.md: preempted, requeued, it goes on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_slurm import RealSlurm, real_slurm

from edl.core.audit.sample_account import account
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LINE = "edl run -np 2 --job mnist --checkpoint ~/checkpoints python train.py &"


@pytest.fixture
def slurm(edl, tmp_path: Path) -> Iterator[RealSlurm]:
    with real_slurm(tmp_path / "slurm", ["n1"], cpus=4) as slurm:
        slurm.wait_up()
        yield slurm


def batch_script(folder: Path, line: str) -> str:
    """The one in the documentation, with another line to run."""
    scripts = re.findall(r"```bash\n(#!.*?)```", (ROOT / "docs" / "slurm.md").read_text(), re.DOTALL)
    (found,) = [script for script in scripts if LINE in script]
    path = folder / "preempted.sbatch"
    path.write_text(found.replace(LINE, line))
    return str(path)


def test_a_job_is_preempted_requeued_and_goes_on(edl, tmp_path, slurm):
    audit, training = tmp_path / "audit", ROOT / "examples" / "torch_preempted.py"
    program = Path(sys.executable)
    job = f"-np 2 --job mnist --checkpoint {tmp_path}/checkpoints --audit {audit}"
    script = f"{program} {training} --step-time 0.03 &"
    line = f"EDL_HOME={edl.home} PYTHONPATH={ROOT} {program.with_name('edl')} run {job} {script}"
    output = f"--output={tmp_path}/output"
    number = slurm("sbatch", "--parsable", output, batch_script(tmp_path, line)).strip()
    said = lambda: (tmp_path / "output").read_text() if (tmp_path / "output").exists() else ""  # noqa: E731
    edl.wait(lambda: "step 20 in all" in said(), "a job that trains", timeout_s=180)

    slurm("scancel", "--signal=TERM", "--batch", number)
    edl.wait(lambda: slurm.shown(number, "Restarts") == "1", "requeued", timeout_s=60)
    edl.wait_nothing_left()
    assert "is preempted, and goes on when the same line is typed again" in said()
    # Slurm lets it wait for two minutes. Started earlier, it is refused: the credential of its first start was revoked.
    edl.wait(lambda: slurm.shown(number, "JobState") == "COMPLETED", "the end", timeout_s=300)

    found = account(read(audit))
    assert found.clean and all(epoch.over for epoch in found.epochs), found
    assert [one.life for one in found.lives] == [1, 2]
    assert found.lives[1].parent_step > 20
    assert f"edl: job mnist goes on from step {found.lives[1].base}, " in said()
    assert re.search(rf"accuracy 0\.[89]\d* after {found.steps} steps", said())
