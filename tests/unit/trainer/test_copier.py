"""What a trainer copies for a checkpoint lies in its file one behind the other; no garbage is collected meanwhile, and
what cannot be copied ends no script.
"""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace

import pytest

from edl.core.worker.inputs import CopyFailed
from edl.errors import UsageError
from edl.protocol.saving import Save
from edl.trainer import copier
from edl.trainer.extras import Extras


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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("sparse"), "RuntimeError: sparse"),
        (UsageError("not built"), "not built"),
        (OSError("full"), "full"),
    ],
)
def test_whatever_cannot_be_copied_costs_the_checkpoint_and_not_the_script(tmp_path, error, said):
    def fail(*, beside):
        raise error

    heard = []
    one = copier.Copier(SimpleNamespace(snapshot=fail), Extras(), heard.append)
    one.take(Save(3, 1, 20, 0, 2, "/c/j/0001-000003-000000000020"), tmp_path)
    assert heard == [CopyFailed(3, said)]
    assert one.idle
    one.finish()
