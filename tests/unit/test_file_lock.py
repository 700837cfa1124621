"""A lock on a file keeps others out of a turn, and no longer."""

from __future__ import annotations

import os
from pathlib import Path

from edl.file_lock import is_held, open_lock, take, turn


def test_a_turn_keeps_others_out_until_its_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = open_lock(path)
    with turn(open_lock(path)):
        assert is_held(path)
        assert not take(other)
    assert not is_held(path)
    assert take(other)
    assert is_held(path)
    os.close(other)
