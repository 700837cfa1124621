"""Decide who acts on a queue: one cluster, and for each of its nodes one agent. Pure.

Owns: these rules. Does not own: where the owner is stored (`edl.scheduler.queue_store`).
"""

from __future__ import annotations

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
