"""A migration of the queue, from its decision to its end, kept in the jobs' entries.

The target placement of a job is durable: a scheduler that takes over continues the migration, and a policy sees the job
at its target, with as many workers as before.

Owns: when a migration begins and ends. Does not own: which job moves (`migration`), nor which worker gets which device
(`seating`).
"""

from __future__ import annotations

from collections import Counter

from edl.cluster.queue.job_lifecycle import send_away
from edl.cluster.queue.migration_choice import MigrationView, in_words, next_migration
from edl.cluster.queue.phases import JobPhase
from edl.cluster.queue.policy_view import placed
from edl.cluster.queue.queue_entries import JobEntry, WorkerWish
from edl.cluster.queue.queue_state import QueueState


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
            held[worker.node] += 1
            of_user[state.jobs[name].asked.user] += 1
    for name, wanted in state.desired.items():
        has = placed(state.jobs[name])
        for node, count in wanted.items():
            held[node] += max(0, count - has.get(node, 0))
    most = sum(len(node.devices) for node in state.nodes.values())
    return MigrationView(
        room={name: len(one.devices) - held[name] for name, one in state.nodes.items() if one.takes(now)},
        left_out=frozenset(state.left_out(now)),
        closed=frozenset(name for name, one in state.nodes.items() if one.is_closed(now, state.rules.settled_s)),
        waits=any(_waits(state.jobs[name], most) for name in state.live),
        quotas={user: most_of - of_user[user] for user, most_of in state.rules.quotas.items()},
    )


def _waits(job: JobEntry, most: int) -> bool:
    return job.phase is JobPhase.PREEMPTING or (job.waits and job.asked.min_np <= most)


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
        held = sum(worker.node == name for other in state.live for worker in state.jobs[other].workers)
        if node is None or not node.takes(now) or len(node.devices) - held < missing:
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
