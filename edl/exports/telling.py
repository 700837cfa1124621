"""Which of a job's events the line of one machine tells other tools. Pure.

A job may have a line of `edl run` on each of many machines, and each has the whole story on record. An event is told
by the line of the machine on which its leader is: by the story alone, so that all lines agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from edl.events import Kind


class Numbered(msgspec.Struct, frozen=True):
    """An event, and its place in the story, from 1."""

    number: int
    flat: dict[str, Any]


class Teller:
    """Of one machine."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._hosts: dict[str, str] = {}  # of workers
        self._leader = ""
        self._held: list[Numbered] = []  # where the leader is, has not been said yet
        self.count = 0

    def take(self, events: Iterable[dict[str, Any]]) -> list[Numbered]:
        """Those that are told here, as far as that is known by now."""
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
        """At the end: no other line can tell them."""
        held, self._held = self._held, []
        return held
