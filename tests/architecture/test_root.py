"""What lies at the root of the repository is what belongs there: a file left by a hand's slip is no part of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {".ci", ".github", "benchmarks", "data", "deploy", "docs", "edl", "examples", "scripts", "tests"}
FILES = {
    *(".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE"),
    *("README.md", "SECURITY.md", "horovod_edl.py", "pyproject.toml", "setup.py"),
}


def test_nothing_else_is_committed_at_the_root() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name.partition("/")[0] for name in listed.splitlines()} == FOLDERS | FILES
