"""pytest fixtures for tests of elastic jobs: `pytest_plugins = ["edl.testing.fixtures"]` in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.core.audit.sample_account import account
from edl.trainer.data.audit_files import read


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that EDL_AUDIT names while the test runs, for a job that it starts.

    Afterwards every sample of every epoch that is over must have been trained exactly once, else the test fails.
    """
    folder = tmp_path / "audit"
    monkeypatch.setenv("EDL_AUDIT", str(folder))
    yield folder
    found = account(read(folder))
    if not found.clean:
        pytest.fail(f"samples were lost or repeated: {found}", pytrace=False)
