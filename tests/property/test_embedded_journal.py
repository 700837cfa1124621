"""Any prefix of a journal brings back what was acknowledged when it was written, and nothing of what was not."""

from __future__ import annotations

import contextlib
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.coordination.embedded import journal
from edl.coordination.embedded.journal import Journal, JournalDamaged, KeptNode, framed, read_back, written
from edl.coordination.store import ANY, Check, Create, Delete, StoreRefused, Write
from edl.coordination.store_state import ROOT, OpsCommitted, SessionEnded, SessionOpened, StoreFull, StoreState
from edl.errors import UsageError

paths = st.sampled_from(["/", "/a", "/a/b", "/a/b/c", "/d"])
versions = st.sampled_from([ANY, ANY, 0, 1])
values = st.binary(max_size=6)
ops = st.one_of(
    st.builds(Create, paths, values, ephemeral=st.booleans(), sequence=st.booleans()),
    st.builds(Write, paths, values, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)
sessions = st.integers(1, 3)
records = st.one_of(
    st.builds(SessionOpened, sessions, st.sampled_from([1.0, 4.0])),
    st.builds(SessionEnded, sessions),
    st.builds(OpsCommitted, sessions, st.lists(ops, max_size=3).map(tuple)),
)
histories = st.lists(records, max_size=25)


def remembered(state):
    names = {path: state.children(path) for path in state.tree}
    assert {path: len(of) for path, of in names.items()} == {path: entry.children for path, entry in state.tree.items()}
    assert state._names.keys() <= names.keys()
    return names, dict(state.tree), dict(state.sessions), state.stamp, state._size_bytes


def told(state, history):
    """Accept what is accepted of it; each record that was."""
    for record in history:
        with contextlib.suppress(StoreRefused, UsageError):
            prepared = state.prepare(record)
            state.accept(prepared)
            yield prepared.record


def played(data):
    state = StoreState()
    end, base = read_back(data, state)
    assert base <= end <= len(data)
    return state, end


@given(histories, histories, st.data())
def test_a_prefix_gives_the_state_after_the_last_whole_record(before, after, data):
    state = StoreState()
    for _ in told(state, before):
        pass
    whole = b"".join(written(state))  # as a compaction leaves it
    states = [(len(whole), remembered(state))]
    for record in told(state, after):
        whole += framed(record)
        states.append((len(whole), remembered(state)))
    cut = data.draw(st.integers(states[0][0], len(whole)))
    end, expected = max((one for one in states if one[0] <= cut), key=lambda one: one[0])
    again, good = played(whole[:cut])
    assert good == end
    assert remembered(again) == expected


@given(histories, st.data())
def test_any_byte_that_changed_is_found(history, data):
    """But in the last record, whose length can only be wrong if its check is, too."""
    state = StoreState()
    whole = b"".join(written(state)) + b"".join(framed(record) for record in told(state, history))
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = bytearray(whole)
    broken[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamaged) as caught:
        read_back(bytes(broken), StoreState())
    assert caught.value.at <= at


@settings(deadline=None)
@given(histories)
def test_a_file_is_bounded_and_tells_the_same_however_often_it_was_compacted(history):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "SLACK_BYTES", 100)
        path, state = Path(folder) / "journal", StoreState()
        file = Journal(path, state)
        for record in told(state, history):
            file.append(record)
            if file.full:
                file.compact(state)
            snapshot = sum(map(len, written(state)))
            largest = max(len(framed(one)) for one in [*history, record])
            assert path.stat().st_size <= 100 + 2 * max(snapshot, file._base) + largest
        again = StoreState()
        Journal(path, again)
        assert remembered(again) == remembered(state)
        assert not path.with_name("journal.new").exists()


@pytest.mark.parametrize("record", [KeptNode("/", ROOT.node, 0, 0), OpsCommitted(1, (Delete("/nowhere"),))])
def test_a_whole_record_that_no_server_writes_there_is_damage(record):
    whole = b"".join(written(StoreState()))
    with pytest.raises(JournalDamaged) as caught:
        read_back(whole + framed(record), StoreState())
    assert caught.value.at == len(whole)


def test_the_bound_of_the_nodes_holds_after_reading_back():
    state = StoreState(math.inf)
    for _ in told(state, [OpsCommitted(1, (Create("/a", b"x" * 100),))]):
        pass
    again = StoreState(len("/") + len("/a") + 100 + len("/b"))
    read_back(b"".join(written(state)), again)
    again.prepare(OpsCommitted(1, (Create("/b"),)))
    with pytest.raises(StoreFull):
        again.prepare(OpsCommitted(1, (Create("/b", b"x"),)))
