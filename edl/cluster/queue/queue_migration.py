"""A migration of the queue, from its decision to its end, kept in the jobs' entries.

The target placement of a job is durable: a scheduler that takes over continues the migration, and a policy sees the job
at its target, with as many workers as before.

A job that grows takes devices where they are free, and stays there when better ones become free: on several nodes it
sends its gradients through a network that it does not need. And a job on a node that fails its workers, or is being
emptied, waits there for the next failure. A policy sees numbers of workers, not nodes; so migrations are decided apart
from it.

One job moves at a time, and by one step at a time, which bounds the cost of a wrong move. Leaving a closed node comes
first. A job is packed onto fewer nodes only if it has not changed for a while and no other job waits; it then spans
fewer nodes than before, so that no two moves undo each other. Newcomers come first if the job may have more workers,
else leavers go first if it keeps its fewest; a job that can do neither is saved and begins elsewhere, and only to leave
a node that is left out. A job whose workers need several devices of one node may wait although enough are free: then
packing another is what it waits for.

Owns: which job moves, by which steps, when a migration begins and ends. Does not own: which worker gets which device
(`device_assignment`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from edl.cluster.queue.job_lifecycle import send_away
from edl.cluster.queue.queue_entries import JobEntry, JobPhase, WorkerWish
from edl.cluster.queue.queue_state import QueueState, placed
from edl.cluster.views import Placement


def resume_or_end(state: QueueState, now: float) -> None:
    """End migrations that are complete, have become impossible, or take too long. Runs before a decision."""
    for job in _moving(state):
        if placed(job) == job.moving and is_settled(state, job):
            _end(state, job, now, "migrated", f"it is on {in_words(job.moving)}")
        elif not _has_room(state, job, now):
            _give_up(state, job, now, "its new place is not free any more")
        elif now - state.seen_since(job.changed or 0.0) >= state.rules.move_s:
            _give_up(state, job, now, f"nothing has come of it in {state.rules.move_s:g} s")


def heed_decision(state: QueueState, now: float) -> None:
    """End the migration of a job that is to change its size, and begin another if none is left. Runs after a
    decision.
    """
    for job in _moving(state):
        if state.desired.get(job.name) != job.moving:
            _end(state, job, now, "migration_failed", "it is to have another size")
    if not state.draining and not _moving(state):
        _begin(state, now)


def _begin(state: QueueState, now: float) -> None:
    quiet = [job for name in state.live if _is_quiet(state, job := state.jobs[name])]
    quiet.sort(key=lambda job: (job.asked.submitted, job.name))
    found = next_migration(quiet, surroundings(state, now), state.rules.settled_s, now)
    if found is None:
        return
    job = found.job
    how = "is saved and begins again" if found.stops else "moves while it trains"
    places = f"from {in_words(placed(job))} to {in_words(found.target)}"
    state.tell(now, "migrating", job.name, f"it {how}, {places}: {found.reason}")
    job = state.jobs[job.name]
    if found.stops:
        send_away(state, job, found.reason, now)
        return
    state.put(job, now, moving=found.target, changed=now)
    state.desired[job.name] = found.target


def surroundings(state: QueueState, now: float) -> MigrationView:
    held: Counter[str] = Counter()
    of_user: Counter[str] = Counter()
    for name in state.live:
        for worker in state.jobs[name].workers:
            held[worker.node] += len(worker.devices)
            of_user[state.jobs[name].asked.user] += len(worker.devices)
    for name, wanted in state.desired.items():
        has = placed(state.jobs[name])
        for node, count in wanted.items():
            held[node] += max(0, count - has.get(node, 0)) * state.jobs[name].asked.processes
    room = {name: len(one.devices) - held[name] for name, one in state.nodes.items() if one.takes(now)}
    return MigrationView(
        room=room,
        left_out=frozenset(state.left_out(now)),
        closed=frozenset(name for name, one in state.nodes.items() if one.is_closed(now, state.rules.settled_s)),
        waits=any(_waits(state, state.jobs[name], sum(room.values())) for name in state.live),
        quotas={user: most_of - of_user[user] for user, most_of in state.rules.quotas.items()},
    )


def _waits(state: QueueState, job: JobEntry, free: int) -> bool:
    """Tell whether the job waits for others. One that has enough free devices, in pieces that are too small for its
    workers' processes, waits for a migration.
    """
    if not job.waits or job.asked.min_np > state.room_for(job):
        return job.phase is JobPhase.PREEMPTING
    placed_now = sum(state.desired.get(job.name, {}).values())
    return placed_now >= job.asked.min_np or free < job.asked.min_np * job.asked.processes


def _is_quiet(state: QueueState, job: JobEntry) -> bool:
    """Tell whether the job trains with all its workers, placed as decided."""
    return is_settled(state, job) and placed(job) == state.desired.get(job.name)


def is_settled(state: QueueState, job: JobEntry) -> bool:
    return (
        job.phase is JobPhase.RUNNING
        and len(job.staying) == len(job.workers) == state.seen_of(job).look.size
        and not state.is_ending(job)
    )


def _moving(state: QueueState) -> list[JobEntry]:
    found = [job for name in state.live if (job := state.jobs[name]).moving]
    return sorted(found, key=lambda job: job.name)


def _has_room(state: QueueState, job: JobEntry, now: float) -> bool:
    has = placed(job)
    for name, count in job.moving.items():
        missing = count - has.get(name, 0)
        if missing <= 0:
            continue
        node = state.nodes.get(name)
        workers = (worker for other in state.live for worker in state.jobs[other].workers if worker.node == name)
        held = sum(len(worker.devices) for worker in workers)
        if node is None or not node.takes(now) or len(node.devices) - held < missing * job.asked.processes:
            return False
    return True


def _give_up(state: QueueState, job: JobEntry, now: float, why: str) -> None:
    """Give a migration up, with as many workers as before: the newest, which have come for it, leave."""
    beyond = len(job.staying) - sum(job.moving.values())
    newest = sorted(job.staying, key=lambda worker: -worker.number)[: max(0, beyond)]
    job = _end(state, job, now, "migration_failed", why)
    if newest and len(job.staying) - len(newest) >= job.asked.min_np:
        state.wish(job, WorkerWish.LEAVE, now, frozenset(worker.id for worker in newest))


def _end(state: QueueState, job: JobEntry, now: float, kind: str, words: str) -> JobEntry:
    state.put(job, now, moving={}, changed=now)
    state.tell(now, kind, job.name, words)
    return state.jobs[job.name]


FEWER_NODES = "it fits on fewer nodes"


class MigrationView(msgspec.Struct, frozen=True):
    """`room`: devices that no job has or is to have, on nodes that take workers."""

    room: Mapping[str, int]
    left_out: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()  # nodes whose agents are there, and which take no workers
    waits: bool = False  # a job waits for devices, or is about to, and packing others would not help it
    quotas: Mapping[str, int] = {}  # user -> devices that the user may have beyond those held now

    def room_for(self, job: JobEntry) -> dict[str, int]:
        """Return the workers of the job that each node has room for."""
        return {node: devices // job.asked.processes for node, devices in self.room.items()}


class JobMove(msgspec.Struct, frozen=True):
    """`stops`: the job cannot be moved while it trains."""

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
        target = packed(placed(job), around.room_for(job))
        if target is not None and not job.asked.spread and _is_mobile(job, around):
            return JobMove(job, target, FEWER_NODES)
    return None


def _away(job: JobEntry, around: MigrationView) -> JobMove | None:
    """Move the job off the closed nodes, as far as there is room elsewhere."""
    before = placed(job)
    shut = sorted(node for node in before if node in around.left_out or node in around.closed)
    room = {node: workers for node, workers in around.room_for(job).items() if workers > 0}
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
    allowed = quotas[job.asked.user] // job.asked.processes if job.asked.user in quotas else job.vacancies
    return max(0, min(job.vacancies, allowed))


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
