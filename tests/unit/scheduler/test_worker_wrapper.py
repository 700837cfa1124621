"""A worker's warden: how the worker has ended is written down on a full disk, too."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl.cluster.queue.end_causes import EndEvidence
from edl.scheduler.cluster_home import put
from edl.scheduler.worker_folders import evidence
from edl.scheduler.worker_wrapper import LAST_WORD_BYTES, LastWord


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file gets longer than that, as on a disk that has room for a part of what is written."""
    before, heard = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:  # before pytest writes its own output, which may be a file
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)


def test_the_last_word_needs_no_more_room_than_was_kept_for_it(tmp_path: Path) -> None:
    word = LastWord(str(tmp_path))
    kept = (tmp_path / ".exit.json").stat()
    word.say(3, "\0" * 8192, starved=True)
    said = (tmp_path / "exit.json").stat()
    assert (said.st_ino, said.st_size, said.st_blocks) == (kept.st_ino, kept.st_size, kept.st_blocks)
    found = evidence(tmp_path)
    assert (found.code, found.starved) == (3, True)
    assert set(found.tail) == {"\0"}


def test_where_not_even_that_can_be_written_the_code_is_a_files_name(tmp_path: Path) -> None:
    word = LastWord(str(tmp_path))
    with limited(LAST_WORD_BYTES // 2):
        word.say(0, "x" * LAST_WORD_BYTES)
    assert evidence(tmp_path) == EndEvidence(code=0)


def test_no_part_of_a_file_takes_the_place_of_the_whole(tmp_path: Path) -> None:
    put(tmp_path / "users.json", b"a" * 1000)
    with limited(1000), pytest.raises(OSError, match="File too large"):
        put(tmp_path / "users.json", b"b" * 2000)
    assert (tmp_path / "users.json").read_bytes() == b"a" * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["users.json"]
