"""The fixture that checks the audit: it fails a test whose job lost a sample, and no other."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

JOB = """
    import os
    import pytest
    import edl.core.data.permutation
    import edl.trainer.data.audit_files
    from edl.protocol.data_nouns import DataSpec, Lease, Range
    from edl.protocol.assignment import solo

    @pytest.mark.parametrize("steps", [2, 1])
    def test_job(audited, steps):
        assert os.environ["EDL_AUDIT"] == str(audited)
        audit = edl.trainer.data.audit_files.AuditFile(audited, "j", "w0")
        spec, lease = DataSpec(4, 1, 2), Lease(1, 0, 2, 2, (Range(0, 0, 4),))
        audit.opened(spec)
        audit.sat(solo("w0"), 0)
        for step in range(1, steps + 1):
            audit.given(lease, step, edl.core.data.permutation.samples_at(spec, Range(0, 2 * step - 2, 2 * step)))
            audit.committed(0, step)
        audit.ended(1, steps)
"""


@pytest.mark.integration  # runs tests in processes: not for scripts/check
def test_a_test_fails_if_its_job_lost_a_sample_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["edl.testing.fixtures"]\n')
    (tmp_path / "test_job.py").write_text(textwrap.dedent(JOB))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "samples were lost or repeated" in done.stdout
    *_, last = done.stdout.splitlines()
    assert last.startswith("2 passed, 1 error"), done.stdout  # both end well, and then one of them is looked at
    assert "ERROR test_job.py::test_job[1]" in done.stdout
