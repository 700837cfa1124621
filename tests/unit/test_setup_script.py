"""The command line of scripts/setup: what it takes, and what it says to what it does not; and its lock."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup"
LOCK = SETUP.with_name("lock.txt").read_text()
ENTRY = re.compile(r"[a-z0-9-]+==[^ \n]+( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n")


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SETUP, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_help_names_both_ways():
    said = asked("--help")
    assert said.returncode == 0
    assert "scripts/setup [--all]" in said.stdout
    assert "scripts/setup --torch" in said.stdout
    assert "#" not in said.stdout


@pytest.mark.parametrize("arguments", [("--tensorflow",), ("--torch", "--all"), ("all",)])
def test_what_it_does_not_take_is_one_line(arguments: tuple[str, ...]):
    said = asked(*arguments)
    assert said.returncode == 2
    assert said.stderr == (
        f"[setup] scripts/setup takes --all (the default), --torch or nothing, not: {' '.join(arguments)}\n"
    )


def test_a_python_that_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_PYTHON", "/bin/false")
    said = asked("--all")
    assert said.returncode == 2
    assert said.stderr == (
        "[setup] EDL_PYTHON=/bin/false is no Python 3.11 to 3.12, the newest that TensorFlow 2.18 has a wheel for; "
        "scripts/setup --torch takes newer ones\n"
    )


def test_each_line_of_the_lock_is_a_version_with_hashes() -> None:
    assert ENTRY.sub("", LOCK) == ""


def test_the_lock_names_no_place_that_packages_come_from() -> None:
    assert "://" not in LOCK and "--index" not in LOCK
