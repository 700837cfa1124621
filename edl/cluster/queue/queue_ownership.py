"""Decide who acts on a queue, one cluster and for each of its nodes one agent, and by which time. Pure.

The wall clock may be set at any moment, and a process may be paused. Neither makes a deadline pass: time advances by a
monotonic clock, by at most a bound between two looks, and approaches the wall clock slowly.

Owns: these rules. Does not own: where the owner is stored (`edl.scheduler.queue_store`), nor reading any clock.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec


class QueueOwner(msgspec.Struct, frozen=True):
    """The cluster that a queue belongs to: agents and schedulers of two clusters would each act on it."""

    identity: str
    home: str  # its EDL_HOME, for people to read
    host: str


class AgentHere(msgspec.Struct, frozen=True):
    """An agent whose session is alive. Its pid is valid in its own pid namespace only."""

    host: str
    pid: int
    started: int
    space: str


def is_owner(found: QueueOwner, mine: QueueOwner, *, takes: bool, in_use: bool) -> bool:
    """Tell whether this cluster owns a queue, or may take it over. `takes`: a queue may be taken over if it is `in_use`
    by no process, worker or waiting job of its owner.
    """
    return found.identity == mine.identity or (takes and not in_use)


def gives_way(other: AgentHere, here: AgentHere, *, runs: bool, deposed: bool) -> bool:
    """Tell whether an agent whose session is not over leaves the node to the agent that is here. `runs`: its pid is in
    use here. `deposed`: it has lost its turn, where agents take turns.
    """
    seen = bool(other.space) and other.space == here.space
    return deposed or (seen and (other.pid == here.pid or not runs))


RATE: Final = 0.1  # by which it is faster or slower than the monotonic clock, until it equals the wall clock


class SeenTime:
    """The time that one process has seen pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wall = self._counted = math.nan  # as they were read last

    def advance(self, wall: float, counted: float | None = None, longest_s: float = math.inf) -> float:
        """Return the time now. `counted`: a monotonic clock; None: the wall clock is used instead. `longest_s`: upper
        bound of the time that passes between two calls.
        """
        counted = wall if counted is None else counted
        if math.isnan(self._wall):
            self.now = wall
        else:
            passed = min(max(0.0, counted - self._counted), longest_s)
            behind = wall - (self.now + passed)
            self.now += passed + max(-RATE * passed, min(behind, RATE * passed))
        self._wall, self._counted = wall, counted
        return self.now
