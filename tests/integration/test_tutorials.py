"""The tutorials, typed along: each block in its order, in a fresh folder that has what a clone has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pace import patient

pytest.importorskip("torch")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KINDS = re.compile(r"^[\d:.]+ +(\w+) ", re.MULTILINE)  # in lines of `edl events`
MOMENT_S = 60.0


class Typist:
    """A reader in one shell after the other, in a clone of their own."""

    def __init__(self, folder: Path) -> None:
        self._clone = folder / "clone"
        self._clone.mkdir()
        for name in ("data", "examples"):
            (self._clone / name).symlink_to(ROOT / name)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environ = {**clean, "EDL_HOME": str(folder / "home"), "PATH": path, "PYTHONPATH": str(ROOT)}
        self._environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def read(self, page: Path) -> int:
        """Type all of a page; return how many blocks were typed."""
        typed = 0
        found = BLOCK.findall(page.read_text())
        for (language, block), (after, shown) in zip(found, [*found[1:], ("", "")], strict=True):
            if language == "python":
                (self._clone / "train.py").write_text(block)
            elif language == "bash":
                self._type(block, set(KINDS.findall(shown)) or {shown.strip()} if after == "text" else set())
                typed += 1
        return typed

    def _type(self, block: str, expected: set[str]) -> None:
        """Type a block. One that only looks is typed again, as a reader does, until it shows what the page shows."""
        until = time.monotonic() + patient(MOMENT_S)
        while True:
            done = self._shell(block)
            assert done.returncode == 0, f"{block}{done.stdout}{done.stderr}"
            missing = {word for word in expected if word not in done.stdout}
            if not missing:
                return
            assert block.startswith("edl events") and time.monotonic() < until, f"no {missing} in {done.stdout}"
            time.sleep(0.5)

    def _shell(self, block: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-ec", block]
        return subprocess.run(words, cwd=self._clone, env=self._environ, capture_output=True, text=True, check=False)

    def end(self) -> None:
        """End what a page that broke off has left."""
        for job in ("classifier", "poet"):
            self._shell(f"edl stop {job} || true")
        self._shell("edl cluster stop || true")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_can_be_typed_as_it_is_written(tmp_path, page) -> None:
    typist = Typist(tmp_path)
    try:
        assert typist.read(page) >= 2
    finally:
        typist.end()


def test_there_are_three() -> None:
    assert [page.stem for page in TUTORIALS] == ["tutorial-classifier", "tutorial-spot", "tutorial-team"]
