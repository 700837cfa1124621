"""The choice of the events that the `edl run` line of one machine exports. Pure.

A job may have a line of `edl run` on each of many machines, and each has all events on record. An event is exported by
the line of the machine that the leader was on. That is known from the events alone, so all lines agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from edl.events import Kind


class Numbered(msgspec.Struct, frozen=True):
    """An event, and its place in the job's history, counted from 1."""

    number: int
    flat: dict[str, Any]


class Teller:
    """The choice of events for one machine."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._hosts: dict[str, str] = {}  # by worker
        self._leader = ""
        self._held: list[Numbered] = []  # held back while the leader's host is unknown
        self.count = 0

    def take(self, events: Iterable[dict[str, Any]]) -> list[Numbered]:
        """Return the events that this machine exports, as far as the leader's host is known by now."""
        found: list[Numbered] = []
        for flat in events:
            self.count += 1
            if flat["kind"] == Kind.LEADER_ELECTED.value:
                self._leader = flat["worker"]
            elif flat["kind"] == Kind.WORKER_JOINING.value:
                self._hosts[flat["worker"]] = flat["host"]
            self._held.append(Numbered(self.count, flat))
            where = self._hosts.get(self._leader)
            if where is not None:
                found += self._held if where == self._host else []
                self._held = []
        return found

    def rest(self) -> list[Numbered]:
        """Return the events held back until the end: no other line can export them."""
        held, self._held = self._held, []
        return held
