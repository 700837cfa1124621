"""`tests/unit` mirrors the tree of `edl`: the tests of a package are in the folder of its name.

At the root of `tests/unit` are the tests of modules at the root of `edl`, and of what is no package of edl: benchmarks,
scripts, and the tools of the tests themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
PACKAGES = {str(init.parent.relative_to(ROOT / "edl")) for init in (ROOT / "edl").rglob("__init__.py")} - {"."}
FOLDERS = sorted({str(test.parent.relative_to(UNIT)) for test in UNIT.rglob("test_*.py")} - {"."})


def named(folder: str) -> re.Pattern[str]:
    """The package that the tests of a folder are to name. The parts of the core are tested through its machines."""
    package = "core" if folder.startswith("core/") else folder
    return re.compile(rf"\bedl\.{re.escape(package.replace('/', '.'))}\b")


def test_each_package_has_a_folder_of_unit_tests_and_each_folder_a_package() -> None:
    above = {str(parent) for folder in FOLDERS for parent in Path(folder).parents} - {"."}
    assert set(FOLDERS) | above == PACKAGES


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_tests_of_a_folder_are_of_its_package(folder: str) -> None:
    strangers = [
        test.name for test in sorted((UNIT / folder).glob("test_*.py")) if not named(folder).search(test.read_text())
    ]
    assert strangers == []


def test_the_tests_at_the_root_are_of_no_package() -> None:
    outside = re.compile(
        r"^(?:from|import) (?:benchmarks|demo|house|pip_settings|tests\.soaks|their_tests|wheel_\w+)\b|subprocess",
        re.MULTILINE,
    )
    for test in sorted(UNIT.glob("test_*.py")):
        beside = (ROOT / "edl" / test.name.removeprefix("test_")).exists()
        assert beside or outside.search(test.read_text()), f"{test.name} is of a package of edl: move it there"
