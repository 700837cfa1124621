"""Choose the job that moves to other nodes, and the workers that come and go next.

A job that grows takes devices where they are free, and stays there when better ones become free: on several nodes it
sends its gradients through a network that it does not need. And a job on a node that fails its workers, or is being
emptied, waits there for the next failure. A policy sees numbers of workers, not nodes; so migrations are decided apart
from it.

One job moves at a time, and by one step at a time, which bounds the cost of a wrong move. Leaving a closed node comes
first. A job is packed onto fewer nodes only if it has not changed for a while and no other job waits; it then spans
fewer nodes than before, so that no two moves undo each other. Newcomers come first if the job may have more workers,
else leavers go first if it keeps its fewest; a job that can do neither is saved and begins elsewhere, and only to leave
a node that is left out.

Owns: these rules, as functions of values. Does not own: carrying them out (`migrating`, `seating`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from edl.cluster.queue.policy_view import placed
from edl.cluster.queue.queue_entries import JobEntry
from edl.cluster.views import Placement

FEWER_NODES = "it fits on fewer nodes"


class MigrationView(msgspec.Struct, frozen=True):
    """The rest of the cluster. `room`: devices that no job has or is to have, on nodes that take workers."""

    room: Mapping[str, int]
    left_out: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()  # nodes whose agents are there, and which take no workers
    waits: bool = False  # a job waits for devices, or is about to
    quotas: Mapping[str, int] = {}  # user -> devices that the user may have beyond those held now


class JobMove(msgspec.Struct, frozen=True):
    """The target of one job's migration. `stops`: the job cannot be moved while it trains."""

    job: JobEntry
    target: Placement
    reason: str
    stops: bool = False


def next_migration(jobs: Iterable[JobEntry], around: MigrationView, settled_s: float, now: float) -> JobMove | None:
    """Return the migration to begin next. `jobs`: those that run with all the workers that they are to have."""
    jobs = tuple(jobs)
    for job in jobs:
        if (found := _away(job, around)) is not None:
            return found
    if around.waits:
        return None
    settled = (job for job in jobs if job.changed is None or now - job.changed >= settled_s)
    for job in settled:
        target = packed(placed(job), around.room)
        if target is not None and not job.asked.spread and _is_mobile(job, around):
            return JobMove(job, target, FEWER_NODES)
    return None


def _away(job: JobEntry, around: MigrationView) -> JobMove | None:
    """Move the job off the closed nodes, as far as there is room elsewhere."""
    before = placed(job)
    shut = sorted(node for node in before if node in around.left_out or node in around.closed)
    room = {node: devices for node, devices in around.room.items() if devices > 0}
    if not shut or not room:
        return None
    after = {node: count for node, count in before.items() if node not in shut}
    left = sum(before[node] for node in shut)
    for node in sorted(room, key=lambda node: (node not in after, -room[node], node)):
        count = min(left, room[node])
        if count:
            after[node] = after.get(node, 0) + count
            left -= count
    for node in shut:
        count = min(left, before[node])
        if count:
            after[node] = count
            left -= count
    words = [f"{node} is left out" if node in around.left_out else f"{node} takes no workers" for node in shut]
    stays = any(node in after for node in shut)
    if _is_mobile(job, around):
        return JobMove(job, after, ", ".join(words))
    stops = not stays and not around.waits and all(node in around.left_out for node in shut)
    return JobMove(job, after, ", ".join(words), stops=True) if stops else None


def packed(before: Placement, room: Mapping[str, int]) -> Placement | None:
    """Return the placement on the fewest nodes that moves the fewest workers; None if it uses no fewer nodes than
    now.
    """
    workers = sum(before.values())
    holds = {node: before.get(node, 0) + max(0, room.get(node, 0)) for node in {*before, *room}}
    most = sorted(holds, key=lambda node: (-holds[node], -before.get(node, 0), node))
    nodes = next((n for n in range(1, len(most) + 1) if sum(holds[node] for node in most[:n]) >= workers), 0)
    if not nodes or nodes >= len(before):
        return None
    chosen: list[str] = []
    for node in sorted(holds, key=lambda node: (-before.get(node, 0), -holds[node], node)):
        rest = [holds[other] for other in most if other != node and other not in chosen]
        taken = sum(holds[one] for one in (*chosen, node))
        if taken + sum(rest[: nodes - len(chosen) - 1]) >= workers:
            chosen.append(node)
        if len(chosen) == nodes:
            break
    after = {node: before.get(node, 0) for node in chosen}
    left = workers - sum(after.values())
    for node in chosen:
        count = min(left, holds[node] - after[node])
        after[node] += count
        left -= count
    return {node: count for node, count in after.items() if count}


def _is_mobile(job: JobEntry, around: MigrationView) -> bool:
    return may_come(job, around.quotas) > 0 or may_go(job) > 0


def may_come(job: JobEntry, quotas: Mapping[str, int]) -> int:
    """Return how many workers the job may have for a moment beyond its present ones."""
    return max(0, min(job.vacancies, quotas.get(job.asked.user, job.vacancies)))


def may_go(job: JobEntry) -> int:
    return max(0, len(job.staying) - job.asked.min_np)


class MoveStep(msgspec.Struct, frozen=True):
    """The workers that come, or that leave, by node."""

    come: Placement = {}
    go: Placement = {}


def next_step(job: JobEntry, quotas: Mapping[str, int]) -> MoveStep:
    """Return the next step of a job that migrates, and trains with all its workers."""
    has, target = placed(job), job.moving
    surplus = {node: count - target.get(node, 0) for node, count in has.items() if count > target.get(node, 0)}
    missing = {node: count - has.get(node, 0) for node, count in target.items() if count > has.get(node, 0)}
    if missing and (coming := may_come(job, quotas)):
        return MoveStep(come=_first(missing, coming))
    return MoveStep(go=_first(surplus, may_go(job)))


def _first(placement: Placement, workers: int) -> Placement:
    found = {}
    for node, count in placement.items():
        if taken := min(count, workers):
            found[node] = taken
            workers -= taken
    return found


def in_words(placement: Placement) -> str:
    return ", ".join(f"{node}: {count}" for node, count in sorted(placement.items()))
