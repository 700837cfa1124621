"""The command line of scripts/setup: what it takes, and what it says to what it does not; its end by a signal; and its
lock.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
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


FETCHES = """#!/bin/bash
case "$1 $2" in
    "python install") echo $$ >fetching.new && mv fetching.new fetching && exec sleep 600 ;;
    "python find") exit 1 ;;
esac
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_an_interruption_ends_a_fetch_of_python_too(tmp_path: Path, number: signal.Signals, to_all: bool) -> None:
    """A terminal's Ctrl-C is sent to all, and what ends a script elsewhere to the script alone."""
    clone = SETUP.parents[1]
    shutil.copytree(clone / "scripts", tmp_path / "scripts")
    for name in ("edl", "setup.py", "pyproject.toml"):
        (tmp_path / name).symlink_to(clone / name)
    (tmp_path / "scripts" / "uv").write_text(FETCHES)
    environ = {name: value for name, value in os.environ.items() if name != "EDL_PYTHON"}
    fetching = tmp_path / "fetching"
    with subprocess.Popen(
        [tmp_path / "scripts" / "setup", "--torch"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as setup:  # fmt: skip
        while not fetching.exists():
            assert setup.poll() is None, setup.communicate()
            time.sleep(0.01)
        fetch = os.pidfd_open(int(fetching.read_text()))
        try:
            os.killpg(setup.pid, number) if to_all else setup.send_signal(number)
            said = setup.communicate(timeout=60)[1]
        finally:
            left = killed(fetch)
    assert (setup.returncode, left) == (130, False)
    assert said == "[setup] interrupted; run scripts/setup again and it goes on from here\n"


def killed(process: int) -> bool:
    """Kill the process of this pidfd; tell whether it was still there."""
    with os.fdopen(process):
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
