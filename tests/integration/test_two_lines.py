"""A script as its library's documentation writes it becomes elastic by two lines, and runs through a growth."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BEFORE, AFTER = ROOT / "tests" / "integration" / "originals", ROOT / "examples"
NAMES = ["lightning_digits.py", "transformers_digits.py", "accelerate_digits.py"]
PAGES = {"lightning_digits.py": "lightning.md"}


def changes(name: str) -> list[str]:
    """Without blank lines, which a formatter wants between imports."""
    before, after = (BEFORE / name).read_text().splitlines(), (AFTER / name).read_text().splitlines()
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return [line for line in lines if line[0] in "+-" and line[1:].strip()]


@pytest.mark.parametrize("name", NAMES)
def test_two_lines_come_and_the_page_shows_them(name: str) -> None:
    lines = changes(name)
    sys.stdout.write("\n".join([f"{name}:", *lines, ""]))
    assert sum(line.startswith("+") for line in lines) <= 2
    assert sum(line.startswith("-") for line in lines) <= 2
    shown = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / PAGES.get(name, "huggingface.md")).read_text(), re.DOTALL)
    assert lines in [block.splitlines() for block in shown]


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_on_two_workers(edl: Any, name: str) -> None:
    edl.cwd = ROOT
    environ = {"HF_HUB_OFFLINE": "1", "EDL_MAX_RESTARTS": "0"}
    job = edl.start("run", "-np", "2", "--job", "two", *edl.warm.command(AFTER / name), **environ)
    out, err = job.communicate(timeout=patient(240))
    assert job.returncode == 0, out + err
    accuracy = [float(found) for found in re.findall(r"accuracy ([\d.]+)", out)]
    assert accuracy and accuracy[-1] > 0.85, out
