"""What the embedded coordinator decides, on a clock of the test's: sessions, links, watches, what cannot be kept."""

from __future__ import annotations

import pytest

from edl.coordination.embedded.embedded_core import (
    BeginSession,
    CommitOps,
    EmbeddedCore,
    EndSession,
    HangUp,
    NodeChanged,
    NodeFound,
    OpsDone,
    OpsRefused,
    PlannedRecord,
    ReadNode,
    SendTold,
    SessionGiven,
    SignOfLife,
    UnwatchPath,
    WatchPath,
)
from edl.coordination.store import Create, NodeExists, Write
from edl.coordination.store_state import StoreState


class Desk:
    """A core whose changes are kept, until `full`; what each link was sent, or that it was hung up."""

    def __init__(self, state=None):
        self.state = StoreState() if state is None else state
        self.now = 100.0
        self.core = EmbeddedCore(self.state, self.now)
        self.fresh = 1000
        self.full = False

    def say(self, link, message):
        self.fresh += 1
        decided = self.core.hear(link, message, self.now, self.fresh)
        return self.keep(decided) if isinstance(decided, PlannedRecord) else decided

    def keep(self, plan):
        return self.core.refuse(plan, "no room") if self.full else self.core.settle(plan, self.now)

    def pass_time(self, seconds):
        """By looks of a fifth of a second, as the process has them."""
        told = []
        for _ in range(round(seconds * 5)):
            self.now += 0.2
            for session in self.core.expired(self.now):
                told += self.keep(self.core.end(session))
        return told

    def begin(self, link, timeout_s=4.0, session=0):
        [*_, sent] = self.say(link, BeginSession(session, timeout_s))
        return sent.message.session


@pytest.fixture
def desk():
    return Desk()


def test_a_session_is_taken_up_by_another_link_and_the_first_is_hung_up(desk):
    session = desk.begin(1)
    assert desk.say(2, BeginSession(session, 4.0)) == [HangUp(1), SendTold(2, SessionGiven(session))]
    assert desk.say(1, ReadNode(1, "/")) == [HangUp(1)]
    assert desk.say(2, ReadNode(1, "/")) == [SendTold(2, NodeFound(1, desk.state.tree["/"].node))]


def test_an_unknown_session_is_followed_by_a_fresh_one(desk):
    first, second = desk.begin(1), desk.begin(2, session=99)
    assert {first, second} == set(desk.state.sessions)
    assert second not in {first, 99}


@pytest.mark.parametrize(
    "message", [SignOfLife(1), ReadNode(1, "/"), CommitOps(1, ()), WatchPath("/"), UnwatchPath("/")]
)
def test_without_a_session_all_is_hung_up(desk, message):
    assert desk.say(1, message) == [HangUp(1)]


@pytest.mark.parametrize(
    "message",
    [
        BeginSession(0, 4.0),
        WatchPath("a"),
        CommitOps(1, (Create("/a//b"),)),
        CommitOps(1, (Create("/a"),) * 50),
        CommitOps(1, (Create("/a"), Create("/b")), parents=True),
        CommitOps(1, (Create("/a", b"x" * 1_000_001),)),
    ],
)
def test_what_no_client_of_ours_says_is_hung_up_and_changes_nothing(desk, message):
    desk.begin(1)
    before = dict(desk.state.tree)
    assert desk.say(1, message) == [HangUp(1)]
    assert desk.state.tree == before


def test_a_silent_session_is_over_after_its_time_and_not_before(desk):
    session = desk.begin(1)
    desk.say(1, CommitOps(1, (Create("/mine", ephemeral=True),)))
    assert desk.pass_time(3.8) == []
    desk.say(1, SignOfLife(2))
    assert desk.pass_time(3.8) == []
    assert desk.pass_time(0.4) == [HangUp(1)]
    assert session not in desk.state.sessions
    assert "/mine" not in desk.state.tree


def test_a_lost_link_ends_no_session(desk):
    session = desk.begin(1)
    desk.core.left(1)
    desk.pass_time(2)
    assert desk.begin(2, session=session) == session


def test_of_a_server_that_stood_still_no_session_lost_its_time(desk):
    """It could hear nobody; those who lived may say so now."""
    session = desk.begin(1)
    desk.now += 60
    assert desk.core.expired(desk.now) == []
    assert session in desk.state.sessions
    desk.pass_time(4.4)
    assert session not in desk.state.sessions


def test_sessions_of_a_server_that_begins_again_have_their_whole_time(desk):
    session = desk.begin(1)
    again = Desk(desk.state)
    again.pass_time(3.8)
    assert again.begin(1, session=session) == session


def test_who_watches_hears_before_the_writer_is_answered(desk):
    desk.begin(1), desk.begin(2)
    desk.say(1, WatchPath("/a"))
    assert desk.say(2, CommitOps(1, (Create("/a"),))) == [
        SendTold(1, NodeChanged("/a")),
        SendTold(2, OpsDone(1, ("/a",))),
    ]
    desk.say(1, UnwatchPath("/a"))
    assert desk.say(2, CommitOps(2, (Write("/a", b""),))) == [SendTold(2, OpsDone(2, (1,)))]
    desk.say(1, WatchPath("/a"))
    desk.core.left(1)
    assert desk.say(2, CommitOps(3, (Write("/a", b""),))) == [SendTold(2, OpsDone(3, (2,)))]
    assert not desk.core._watching


def test_the_end_of_a_session_is_told_and_hangs_up_both_who_asked_and_who_had_it(desk):
    session = desk.begin(1)
    desk.begin(2)
    desk.say(1, CommitOps(1, (Create("/mine", ephemeral=True),)))
    desk.say(2, WatchPath("/mine"))
    assert desk.say(3, EndSession(session)) == [SendTold(2, NodeChanged("/mine")), HangUp(1), HangUp(3)]
    assert desk.say(3, EndSession(session)) == [HangUp(3)]


def test_a_refusal_names_the_culprit(desk):
    desk.begin(1)
    desk.say(1, CommitOps(1, (Create("/a"),)))
    [sent] = desk.say(1, CommitOps(2, (Create("/b"), Create("/a"))))
    assert sent.message == OpsRefused(2, NodeExists.__name__, "/a", 1)
    assert "/b" not in desk.state.tree


def test_what_cannot_be_kept_is_refused_and_has_not_happened(desk):
    session = desk.begin(1)
    desk.say(1, WatchPath("/a"))
    desk.full = True
    assert desk.say(1, CommitOps(1, (Create("/a"),))) == [SendTold(1, OpsRefused(1, "StoreUnavailable", "no room"))]
    assert desk.say(2, BeginSession(0, 4.0)) == [SendTold(2, OpsRefused(0, "StoreUnavailable", "no room"))]
    assert "/a" not in desk.state.tree and set(desk.state.sessions) == {session}
    assert desk.pass_time(5) == []  # nor does a session end: nobody could rely on it
    assert session in desk.state.sessions
    desk.full = False
    assert desk.pass_time(0.2) == [HangUp(1)]
