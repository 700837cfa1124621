"""The decisions of the embedded coordinator about each message, and as time goes by. Pure.

Owns: which connection has which session, when a session has expired, which connections watch which nodes, the answers,
and the messages, which go over a private pipe (`edl.transport.pipe`). Does not own: the effect of a transaction
(`store_state`), where changes are kept (`journal`), nor sockets and clocks (`__main__`).

A change is first planned, then written to the journal, and only then accepted and answered (`settle`); if it cannot be
written, it is refused (`refuse`). No other message may be handled between the two.

A client sends `BeginSession` first, or only `EndSession`. Its questions are carried out and answered in order. The
server reports a change before it answers any question that was asked after the change.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from edl.coordination.store import Op, StoredNode, StoreRefused, check_ops, check_path
from edl.coordination.store_state import (
    OpsCommitted,
    PreparedRecord,
    SessionEnded,
    SessionOpened,
    StoreFull,
    StoreState,
)
from edl.errors import Fenced, UsageError

UNKEPT: Final = "StoreUnavailable"
STOOD_STILL_S: Final = 1.0
"""A server that was suspended for so long received no sign of life meanwhile: all deadlines are moved by that time."""


@dataclass(frozen=True, slots=True)
class SendTold:
    link: int
    message: Told


@dataclass(frozen=True, slots=True)
class HangUp:
    link: int


Command = SendTold | HangUp


@dataclass(frozen=True, slots=True)
class PlannedRecord:
    """A change that counts only once the journal has it."""

    prepared: PreparedRecord
    link: int = 0  # link that has asked for the change; 0: none has
    number: int = 0  # number of the question


class EmbeddedCore:
    """The coordinator's machine. Links are numbers of connections, from 1."""

    def __init__(self, state: StoreState, now: float) -> None:
        self._state = state
        self._looked_at = now
        self._deadlines = {session: now + timeout_s for session, timeout_s in state.sessions.items()}
        self._sessions: dict[int, int] = {}  # by link
        self._links: dict[int, int] = {}  # by session
        self._watching: defaultdict[str, set[int]] = defaultdict(set)  # links, by path

    def hear(self, link: int, message: Asked, now: float, fresh: int) -> list[Command] | PlannedRecord:
        """`fresh` is a number that no session has had, for a session that may begin here."""
        session = self._sessions.get(link)
        match message:
            case BeginSession(wanted, timeout_s) if session is None:
                if wanted in self._state.sessions:
                    return self._taken_up(link, wanted, now)
                return PlannedRecord(self._state.prepare(SessionOpened(fresh, timeout_s)), link)
            case EndSession(ending) if ending in self._state.sessions:
                return PlannedRecord(self._state.prepare(SessionEnded(ending)), link)
            case BeginSession() | EndSession():
                pass
            case question:
                if session is not None:
                    self._deadlines[session] = now + self._state.sessions[session]
                    with contextlib.suppress(UsageError):  # from a message that edl's own clients never send
                        return self._answer(link, session, question)
        return [HangUp(link)]

    def _answer(self, link: int, session: int, message: InSession) -> list[Command] | PlannedRecord:
        answer: Told
        tree = self._state.tree
        match message:
            case CommitOps():
                return self._commit(link, session, message)
            case WatchPath(path):
                check_path(path)
                self._watching[path].add(link)
                return []
            case UnwatchPath(path):
                self._unwatch(path, link)
                return []
            case SignOfLife(number):
                answer = OpsDone(number)
            case ReadNode(number, path):
                answer = NodeFound(number, tree[path].node if path in tree else None)
            case ListChildren(number, path):
                answer = ChildrenListed(number, self._state.children(path))
        return [SendTold(link, answer)]

    def _commit(self, link: int, session: int, asked: CommitOps) -> list[Command] | PlannedRecord:
        check_ops(asked.ops)
        if asked.parents and len(asked.ops) != 1:
            return [HangUp(link)]
        try:
            prepared = self._state.prepare_commit(session, asked.ops, fence=asked.fence, parents=asked.parents)
            return PlannedRecord(prepared, link, asked.number)
        except StoreRefused as error:
            culprit = next((at for at, op in enumerate(asked.ops) if op is error.op), -1)
            return [SendTold(link, OpsRefused(asked.number, type(error).__name__, error.path, culprit))]
        except (Fenced, UsageError, StoreFull) as error:
            return [SendTold(link, OpsRefused(asked.number, type(error).__name__, str(error)))]

    def settle(self, plan: PlannedRecord, now: float) -> list[Command]:
        """Accept a change that the journal has, and answer it."""
        self._state.accept(plan.prepared)
        watched = plan.prepared.changes.keys() & self._watching.keys()
        told: list[Command] = [SendTold(link, NodeChanged(path)) for path in watched for link in self._watching[path]]
        match plan.prepared.record:
            case SessionOpened(session):
                return told + self._taken_up(plan.link, session, now)
            case SessionEnded(session):
                self._deadlines.pop(session, None)
                link = self._links.get(session, 0)
                self.left(link)
                return told + [HangUp(one) for one in sorted({link, plan.link} - {0})]
            case OpsCommitted():
                return [*told, SendTold(plan.link, OpsDone(plan.number, plan.prepared.results))]

    def refuse(self, plan: PlannedRecord, why: str) -> list[Command]:
        """Answer a change that the journal could not take; nothing is changed, and the end of a session is tried again
        later.
        """
        return [SendTold(plan.link, OpsRefused(plan.number, UNKEPT, why))] if plan.link else []

    def expired(self, now: float) -> list[int]:
        """Return the sessions that have given no sign of life for too long."""
        stood_still_s = now - self._looked_at
        self._looked_at = now
        if stood_still_s > STOOD_STILL_S:
            self._deadlines = {session: deadline + stood_still_s for session, deadline in self._deadlines.items()}
        return [session for session, deadline in self._deadlines.items() if deadline <= now]

    def end(self, session: int) -> PlannedRecord:
        return PlannedRecord(self._state.prepare(SessionEnded(session)))

    def left(self, link: int) -> None:
        """Forget a connection that is gone; its session lives on until it expires."""
        session = self._sessions.pop(link, None)
        if session is not None:
            del self._links[session]
        for path in [path for path, links in self._watching.items() if link in links]:
            self._unwatch(path, link)

    def _taken_up(self, link: int, session: int, now: float) -> list[Command]:
        before = self._links.get(session)
        if before is not None:
            self.left(before)
        self._sessions[link], self._links[session] = session, link
        self._deadlines[session] = now + self._state.sessions[session]
        return [*([] if before is None else [HangUp(before)]), SendTold(link, SessionGiven(session))]

    def _unwatch(self, path: str, link: int) -> None:
        links = self._watching.get(path)
        if links is not None:
            links.discard(link)
            if not links:
                del self._watching[path]


LONGEST_SESSION_S = 86_400.0

TimeoutS = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_SESSION_S)]


class _WireMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# ------------------------------------------------------------------------------------------------ what clients say


class BeginSession(_WireMessage, frozen=True):
    """Resume this session; if it is over, or 0, begin another."""

    session: int
    timeout_s: TimeoutS


class EndSession(_WireMessage, frozen=True):
    """End the session; the server then closes the connection."""

    session: int


class SignOfLife(_WireMessage, frozen=True):
    """Keep the session alive, as any message does."""

    number: int


class ReadNode(_WireMessage, frozen=True):
    number: int
    path: str


class ListChildren(_WireMessage, frozen=True):
    number: int
    path: str


class CommitOps(_WireMessage, frozen=True):
    number: int
    ops: tuple[Op, ...]
    fence: str | None = None
    parents: bool = False


class WatchPath(_WireMessage, frozen=True):
    """Report changes of this node, or of the list of its children, from now on."""

    path: str


class UnwatchPath(_WireMessage, frozen=True):
    path: str


InSession = SignOfLife | ReadNode | ListChildren | CommitOps | WatchPath | UnwatchPath
Asked = BeginSession | EndSession | InSession


# ------------------------------------------------------------------------------------------------ what servers say


class SessionGiven(_WireMessage, frozen=True):
    """The session that this connection has from now on."""

    session: int


class OpsDone(_WireMessage, frozen=True):
    number: int
    results: tuple[str | int | None, ...] = ()


class NodeFound(_WireMessage, frozen=True):
    number: int
    node: StoredNode | None


class ChildrenListed(_WireMessage, frozen=True):
    number: int
    names: tuple[str, ...]


class OpsRefused(_WireMessage, frozen=True):
    """The refusal of a change: nothing was changed. `why` is the name of the port's error; `op` is the index of the
    refused operation, or -1.
    """

    number: int
    why: str
    path: str = ""
    op: int = -1


class NodeChanged(_WireMessage, frozen=True):
    path: str


Answer = OpsDone | NodeFound | ChildrenListed | OpsRefused
Told = SessionGiven | Answer | NodeChanged
