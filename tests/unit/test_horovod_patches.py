"""What scripts/build-horovod changes in Horovod's sources, and which tests scripts/matrix runs on the outcome."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = sorted((ROOT / "scripts" / "horovod-patches").iterdir())


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_is_whole_and_says_what_it_is_for(patch: Path) -> None:
    head, begin, _ = patch.read_text().partition("\n--- a/")
    assert begin
    assert re.fullmatch(r"[A-Z][^\0]+\.\n", head)
    told = subprocess.run(["git", "apply", "--numstat", patch], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_the_matrix_names_tests_that_there_are() -> None:
    named = re.findall(r'^ +"\$JOBS/(\w+\.py)(?:::(\w+))?"', (ROOT / "scripts" / "matrix").read_text(), re.MULTILINE)
    assert named
    for file, test in named:
        assert f"def {test or 'test_'}" in (ROOT / "tests" / "integration" / file).read_text()
