"""What scripts/build-horovod changes in Horovod's sources, and which tests scripts/matrix runs on the outcome."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
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


def test_other_sources_are_refused_before_anything_of_them_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        "setup.py": f"open({str(ran)!r}, 'w')\nimport setuptools\nsetuptools.setup(name='horovod', version='0.28.1')\n",
    }
    with tarfile.open(tmp_path / "horovod-0.28.1.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            file = tarfile.TarInfo(f"horovod-0.28.1/{name}")
            file.size = len(text)
            archive.addfile(file, io.BytesIO(text.encode()))
    environ = {**os.environ, "EDL_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    command = [str(ROOT / "scripts" / "build-horovod"), "build", sys.executable]
    built = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert built.returncode == 2, built
    assert re.fullmatch(r"\[setup\] the sources of Horovod 0\.28\.1 that pip found are not [^\n]*\n", built.stderr)
    assert not ran.exists()


def test_the_matrix_names_tests_that_there_are() -> None:
    named = re.findall(r'^ +"\$JOBS/(\w+\.py)(?:::(\w+))?"', (ROOT / "scripts" / "matrix").read_text(), re.MULTILINE)
    assert named
    for file, test in named:
        assert f"def {test or 'test_'}" in (ROOT / "tests" / "integration" / file).read_text()
