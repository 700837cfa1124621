"""What two processes that were killed together leave in memory goes with the next process, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl.errors import ConfigError
from edl.host.memory_folders import NAME, make_folder, sweep

MAKE = "from edl.host.memory_folders import make_folder; print(make_folder())"


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_process_that_lives_stays(parent: Path) -> None:
    mine = make_folder()
    assert mine.stat().st_mode & 0o777 == 0o700
    sweep()
    assert list(parent.iterdir()) == [mine]


def test_the_folder_of_a_process_that_is_gone_goes_with_the_next_that_comes(parent: Path) -> None:
    made = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=True)
    left = Path(made.stdout.strip())
    assert left.is_dir()
    mine = make_folder()
    assert list(parent.iterdir()) == [mine]


def test_what_may_be_of_another_process_stays(parent: Path) -> None:
    match = NAME.fullmatch(make_folder().name)
    assert match is not None
    elsewhere = parent / f"edl-1-{match[2]}-1-abc"  # of another pid namespace
    unknown = parent / "edl-notes"
    for folder in (elsewhere, unknown):
        folder.mkdir()
    sweep()
    assert elsewhere.is_dir() and unknown.is_dir()


def test_another_process_of_the_same_pid_is_not_the_one_that_made_it(parent: Path) -> None:
    match = NAME.fullmatch(make_folder().name)
    assert match is not None
    before = parent / f"edl-{match[1]}-{os.getpid()}-{int(match[3]) - 1}-abc"
    before.mkdir()
    sweep()
    assert not before.exists()


@pytest.mark.parametrize("mode", [0o770, 0o707, None], ids=["group", "world", "owner"])
def test_a_runtime_folder_that_others_could_change_is_refused(
    parent: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    if mode is not None:
        parent.chmod(mode)
    elif os.geteuid() == 0:
        os.chown(parent, 1000, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: parent.stat().st_uid + 1)
    with pytest.raises(ConfigError, match=rf"^XDG_RUNTIME_DIR={parent} [^\n]*: unset it, or [^\n]*mode 700$"):
        make_folder()
    assert list(parent.iterdir()) == []


def test_a_runtime_folder_that_all_may_use_and_none_may_change_will_do(parent: Path) -> None:
    parent.chmod(0o1777)
    assert make_folder().parent == parent
