"""What the embedded coordinator does about each message and as time goes by. Pure.

Owns: which connection has which session, when a session is over, who watches what, and the answers. Does not own:
what a transaction does (`store_state`), where changes are kept (`journal`), nor sockets and clocks (`__main__`).

A change is first planned, then kept, and only then does it count and is answered: `settle`; or, where it cannot be
kept, `refuse`. Between the two no other message may come.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from edl.coordination.embedded.wire import (
    Asked,
    Beat,
    Began,
    Begin,
    Changed,
    Children,
    Commit,
    Done,
    End,
    Found,
    Names,
    Read,
    Refused,
    Told,
    UnwatchPath,
    WatchPath,
)
from edl.coordination.store import StoreRefused, check_ops, check_path
from edl.coordination.store_state import Committed, Ended, Opened, Prepared, StoreFull, StoreState
from edl.errors import Fenced, UsageError

UNKEPT: Final = "StoreUnavailable"
STOOD_STILL_S: Final = 1.0
"""A server that did not look for so long could hear no sign of life meanwhile: no session's time went by."""


@dataclass(frozen=True, slots=True)
class Send:
    link: int
    message: Told


@dataclass(frozen=True, slots=True)
class HangUp:
    link: int


Command = Send | HangUp


@dataclass(frozen=True, slots=True)
class Plan:
    """A change that does not count before it is kept."""

    prepared: Prepared
    link: int = 0  # who asked for it; 0: nobody
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

    def hear(self, link: int, message: Asked, now: float, fresh: int) -> list[Command] | Plan:
        """`fresh`: the number of the session that begins here, if one does; no other has ever had it."""
        session = self._sessions.get(link)
        match message:
            case Begin(wanted, timeout_s):
                if session is not None:
                    return [HangUp(link)]
                if wanted in self._state.sessions:
                    return self._taken_up(link, wanted, now)
                return Plan(self._state.prepare(Opened(fresh, timeout_s)), link)
            case End(ending):
                if ending not in self._state.sessions:
                    return [HangUp(link)]
                return Plan(self._state.prepare(Ended(ending)), link)
        if session is None:
            return [HangUp(link)]
        self._deadlines[session] = now + self._state.sessions[session]
        try:
            return self._answer(link, session, message)
        except UsageError:  # of what our own clients do not send
            return [HangUp(link)]

    def _answer(
        self, link: int, session: int, message: Beat | Read | Children | Commit | WatchPath | UnwatchPath
    ) -> list[Command] | Plan:
        tree = self._state.tree
        match message:
            case Beat(number):
                return [Send(link, Done(number))]
            case Read(number, path):
                return [Send(link, Found(number, tree[path].node if path in tree else None))]
            case Children(number, path):
                return [Send(link, Names(number, tuple(sorted(tree[path].children)) if path in tree else ()))]
            case Commit():
                return self._commit(link, session, message)
            case WatchPath(path):
                check_path(path)
                self._watching[path].add(link)
                return []
            case UnwatchPath(path):
                self._unwatch(path, link)
                return []

    def _commit(self, link: int, session: int, asked: Commit) -> list[Command] | Plan:
        check_ops(asked.ops)
        if asked.parents and len(asked.ops) != 1:
            return [HangUp(link)]
        try:
            prepared = self._state.prepare_commit(session, asked.ops, fence=asked.fence, parents=asked.parents)
            return Plan(prepared, link, asked.number)
        except StoreRefused as error:
            culprit = next((at for at, op in enumerate(asked.ops) if op is error.op), -1)
            return [Send(link, Refused(asked.number, type(error).__name__, error.path, culprit))]
        except (Fenced, UsageError, StoreFull) as error:
            return [Send(link, Refused(asked.number, type(error).__name__, str(error)))]

    def settle(self, plan: Plan, now: float) -> list[Command]:
        """It is kept: it counts."""
        self._state.accept(plan.prepared)
        watched = plan.prepared.changes.keys() & self._watching.keys()
        told: list[Command] = [Send(link, Changed(path)) for path in watched for link in self._watching[path]]
        match plan.prepared.record:
            case Opened(session):
                return told + self._taken_up(plan.link, session, now)
            case Ended(session):
                self._deadlines.pop(session, None)
                link = self._links.get(session, 0)
                self.left(link)
                return told + [HangUp(one) for one in sorted({link, plan.link} - {0})]
            case Committed():
                return [*told, Send(plan.link, Done(plan.number, plan.prepared.results))]

    def refuse(self, plan: Plan, why: str) -> list[Command]:
        """It cannot be kept, and nothing is changed: the end of a session is tried again later."""
        return [Send(plan.link, Refused(plan.number, UNKEPT, why))] if plan.link else []

    def expired(self, now: float) -> list[int]:
        """The sessions that have given no sign of life for too long."""
        stood_still_s = now - self._looked_at
        self._looked_at = now
        if stood_still_s > STOOD_STILL_S:
            self._deadlines = {session: deadline + stood_still_s for session, deadline in self._deadlines.items()}
        return [session for session, deadline in self._deadlines.items() if deadline <= now]

    def end(self, session: int) -> Plan:
        return Plan(self._state.prepare(Ended(session)))

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
        return [*([] if before is None else [HangUp(before)]), Send(link, Began(session))]

    def _unwatch(self, path: str, link: int) -> None:
        links = self._watching.get(path)
        if links is not None:
            links.discard(link)
            if not links:
                del self._watching[path]
