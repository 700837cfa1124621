"""What the embedded coordinator does about each message and as time goes by. Pure.

Owns: which connection has which session, when a session is over, who watches what, and the answers. Does not own:
what a transaction does (`store_state`), where changes are kept (`journal`), nor sockets and clocks (`__main__`).

A change is first planned, then kept, and only then does it count and is answered: `settle`; or, where it cannot be
kept, `refuse`. Between the two no other message may come.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from edl.coordination.embedded.wire import (
    Asked,
    BeginSession,
    ChildrenListed,
    CommitOps,
    EndSession,
    InSession,
    ListChildren,
    NodeChanged,
    NodeFound,
    OpsDone,
    OpsRefused,
    ReadNode,
    SessionGiven,
    SignOfLife,
    Told,
    UnwatchPath,
    WatchPath,
)
from edl.coordination.store import StoreRefused, check_ops, check_path
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
"""A server that did not look for so long could hear no sign of life meanwhile: no session's time went by."""


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
    """A change that does not count before it is kept."""

    prepared: PreparedRecord
    link: int = 0  # whose question it is; 0: no link's
    number: int = 0  # of the question


class EmbeddedCore:
    """Links are numbers of connections, from 1."""

    def __init__(self, state: StoreState, now: float) -> None:
        self._state = state
        self._looked_at = now
        self._deadlines = {session: now + timeout_s for session, timeout_s in state.sessions.items()}
        self._sessions: dict[int, int] = {}  # by link
        self._links: dict[int, int] = {}  # by session
        self._watching: defaultdict[str, set[int]] = defaultdict(set)  # links, by path

    def hear(self, link: int, message: Asked, now: float, fresh: int) -> list[Command] | PlannedRecord:
        """`fresh`: the number of the session that begins here, if one does; no other has ever had it."""
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
                    with contextlib.suppress(UsageError):  # of what our own clients do not send
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
        """It is kept: it counts."""
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
        """It cannot be kept, and nothing is changed: the end of a session is tried again later."""
        return [SendTold(plan.link, OpsRefused(plan.number, UNKEPT, why))] if plan.link else []

    def expired(self, now: float) -> list[int]:
        """The sessions that have given no sign of life for too long."""
        stood_still_s = now - self._looked_at
        self._looked_at = now
        if stood_still_s > STOOD_STILL_S:
            self._deadlines = {session: deadline + stood_still_s for session, deadline in self._deadlines.items()}
        return [session for session, deadline in self._deadlines.items() if deadline <= now]

    def end(self, session: int) -> PlannedRecord:
        return PlannedRecord(self._state.prepare(SessionEnded(session)))

    def left(self, link: int) -> None:
        """The connection is gone; the session lives on for its time."""
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
