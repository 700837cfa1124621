"""The journal's file: what a crash leaves, what a full disk leaves, and what is damaged."""

from __future__ import annotations

import logging
import os

import pytest

from edl.coordination.embedded.journal import SLACK_BYTES, Journal
from edl.coordination.store import Create, Write
from edl.coordination.store_state import OpsCommitted, SessionOpened, StoreFull, StoreState
from edl.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def keep(journal, state, *records):
    for record in records:
        prepared = state.prepare(record)
        journal.append(prepared.record)
        state.accept(prepared)


def reopened(path):
    state = StoreState()
    return Journal(path, state), state


@pytest.fixture
def used(path):
    """A journal of three records, and its state."""
    journal, state = reopened(path)
    keep(journal, state, SessionOpened(7, 4.0), OpsCommitted(7, (Create("/a", b"1", ephemeral=True),)))
    keep(journal, state, OpsCommitted(7, (Write("/a", b"2"),)))
    return journal, state


def test_it_is_private_and_comes_back(path, used):
    assert path.stat().st_mode & 0o777 == 0o600
    _, again = reopened(path)
    assert again.tree["/a"] == used[1].tree["/a"]
    assert again.sessions == {7: 4.0}


def test_a_write_that_was_cut_short_is_dropped_and_said_and_it_goes_on(path, used, caplog):
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with caplog.at_level(logging.WARNING, "edl"):
        journal, again = reopened(path)
    assert "its last write had not ended" in caplog.text
    assert again.tree["/a"].node.value == b"1"
    keep(journal, again, OpsCommitted(7, (Write("/a", b"3"),)))
    _, third = reopened(path)
    assert third.tree["/a"].node.value == b"3"


@pytest.mark.parametrize("at", [0, 20, 60, -40])
def test_damage_is_one_line_that_names_the_file_and_the_place(path, used, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=rf"^{path} is no journal [^\n]*damaged at byte \d+ of {len(data)}: [^\n]*$"):
        reopened(path)
    assert path.read_bytes() == data  # as it was found


@pytest.mark.parametrize("cut_bytes", [1, 500, 999])
def test_a_cut_before_whole_records_is_no_end(path, used, cut_bytes):
    journal, state = used
    keep(journal, state, OpsCommitted(7, (Write("/a", b"x" * 1000),)))
    end = path.stat().st_size
    keep(journal, state, OpsCommitted(7, (Write("/a", b"4"),)))
    data = path.read_bytes()
    path.write_bytes(data[: end - cut_bytes] + data[end:])
    with pytest.raises(ConfigError, match=r"damaged at byte \d+"):
        reopened(path)


def test_what_a_killed_compaction_left_is_removed(path, used):
    draft = path.with_name("journal.new")
    draft.write_bytes(b"half")
    reopened(path)
    assert not draft.exists()


def test_a_disk_that_takes_no_more_leaves_it_as_it_was(path, used, monkeypatch):
    journal, state = used
    before, write = path.read_bytes(), os.write

    def write_a_part(file, data):
        if path.stat().st_size > len(before):
            raise OSError("no room")
        return write(file, data[:5])

    monkeypatch.setattr(os, "write", write_a_part)
    prepared = state.prepare(OpsCommitted(7, (Write("/a", b"3"),)))
    with pytest.raises(OSError, match="no room"):
        journal.append(prepared.record)
    assert path.read_bytes() == before
    monkeypatch.undo()
    keep(journal, state, OpsCommitted(7, (Write("/a", b"4"),)))
    assert reopened(path)[1].tree["/a"].node.value == b"4"


def test_a_compaction_for_which_there_is_no_room_is_tried_again_later(path, used, monkeypatch):
    journal, state = used
    big = OpsCommitted(7, (Write("/a", b"x" * (SLACK_BYTES // 8)),))
    while not journal.full:
        keep(journal, state, big)
    size = path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(type(path), "rename", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            journal.compact(state)
    assert path.stat().st_size == size and not journal.full
    keep(journal, state, big)
    journal.compact(state)
    assert path.stat().st_size < size / 4
    keep(journal, state, OpsCommitted(7, (Write("/a", b"last"),)))
    assert reopened(path)[1].tree["/a"].node.value == b"last"


def test_nodes_hold_so_much_and_no_more():
    state = StoreState(100)
    state.accept(state.prepare(OpsCommitted(1, (Create("/a", b"x" * 60),))))
    with pytest.raises(StoreFull, match="/b: its nodes hold 63 bytes, of 100 at most"):
        state.prepare(OpsCommitted(1, (Create("/b", b"x" * 60),)))
    state.accept(state.prepare(OpsCommitted(1, (Write("/a", b""), Create("/b", b"x" * 60)))))
