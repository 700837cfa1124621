"""A script as its library's documentation writes it becomes elastic by two lines, one of torchrun by four; and runs."""

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
OF_TORCHRUN = "ddp_digits.py"
PAGES = {"lightning_digits.py": "lightning.md", OF_TORCHRUN: "from-torchrun.md"}


def changes(name: str) -> list[str]:
    """Without blank lines, which a formatter wants between imports, and without what the docstrings say to type."""
    before, after = (path.read_text().partition('"""\n\n')[2].splitlines() for path in (BEFORE / name, AFTER / name))
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return [line for line in lines if line[0] in "+-" and line[1:].strip()]


def shown_on(page: str) -> list[list[str]]:
    """Its diffs."""
    blocks = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    return [block.splitlines() for block in blocks]


@pytest.mark.parametrize("name", NAMES)
def test_two_lines_come_and_the_page_shows_them(name: str) -> None:
    lines = changes(name)
    sys.stdout.write("\n".join([f"{name}:", *lines, ""]))
    assert sum(line.startswith("+") for line in lines) <= 2
    assert sum(line.startswith("-") for line in lines) <= 2
    assert lines in shown_on(PAGES.get(name, "huggingface.md"))


def test_of_a_script_of_torchrun_what_that_needed_goes_and_four_lines_come() -> None:
    lines = changes(OF_TORCHRUN)
    sys.stdout.write("\n".join([*lines, ""]))
    come, go = ([line[1:] for line in lines if line.startswith(sign)] for sign in "+-")
    assert len(come) <= 4
    kept = [line for line in go if not re.search("dist|Dist|sampler|range", line)]
    assert not kept, "lines that go though torchrun does not need them"
    assert lines in shown_on(PAGES[OF_TORCHRUN])


@pytest.mark.soak
@pytest.mark.parametrize("name", [*NAMES, OF_TORCHRUN])
def test_it_learns_on_two_workers(edl: Any, name: str) -> None:
    edl.cwd = ROOT
    environ = {"HF_HUB_OFFLINE": "1", "EDL_MAX_RESTARTS": "0"}
    job = edl.start("run", "-np", "2", "--job", "two", *edl.warm.command(AFTER / name), **environ)
    out, err = job.communicate(timeout=patient(240))
    assert job.returncode == 0, out + err
    accuracy = [float(found) for found in re.findall(r"accuracy ([\d.]+)", out)]
    assert accuracy and accuracy[-1] > 0.85, out
