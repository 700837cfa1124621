"""What a trainer copies for a checkpoint lies in its file one behind the other; no garbage is collected meanwhile."""

from __future__ import annotations

import gc
import os

import pytest

from edl.trainer import copier


def test_pieces_of_all_sizes_lie_one_behind_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(copier, "TOGETHER", 64)
    sizes = [1, 0, 7, 200, *[3] * 1200, 0]
    contents = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    monkeypatch.setattr(os, "writev", lambda file, views: os.write(file, b"".join(views)[:29]))
    with (tmp_path / "part").open("wb", buffering=0) as opened:
        for together in copier._grouped(memoryview(one) for one in contents):
            copier._write_all(opened.fileno(), together)
    assert (tmp_path / "part").read_bytes() == b"".join(contents)


def test_small_pieces_are_written_together():
    groups = list(copier._grouped(memoryview(b"abc") for _ in range(2000)))
    assert [len(group) for group in groups] == [512, 512, 512, 464]


@pytest.mark.parametrize("collects", [True, False])
def test_collection_is_afterwards_as_it_was(collects):
    (gc.enable if collects else gc.disable)()
    try:
        with copier._no_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == collects
    finally:
        gc.enable()
