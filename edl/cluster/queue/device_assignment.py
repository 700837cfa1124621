"""Carry out a policy's decision, device by device and worker by worker.

A job begins with all of its fewest workers or with none. It grows onto devices that are free, shrinks by workers that
leave while it trains, and is preempted only after it was saved. No device is given twice: a device taken from a job is
given on once the process there is gone (I17).

A policy does not see a job that its user has no room for, and sees the other jobs with the room that is left to them:
so no policy need know of quotas.

Owns: asking the policy, and the steps from the present placement to the decided one. Does not own: the policy, which
job moves to other nodes (`queue_migration`), nor the life of a job that has devices (`job_lifecycle`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from edl.cluster.placement import Rule, place
from edl.cluster.queue import queue_migration
from edl.cluster.queue.job_lifecycle import give_up, send_away
from edl.cluster.queue.measured_speeds import LiveSpeeds
from edl.cluster.queue.queue_entries import ACTIVE, TRAINING, JobEntry, JobPhase, PhaseChange, WorkerEntry, WorkerWish
from edl.cluster.queue.queue_migration import next_step
from edl.cluster.queue.queue_state import ObservedPace, QueueState, free_devices, placed, view
from edl.cluster.queue.scheduler_inputs import ChangeBatch
from edl.cluster.views import Allotment, ClusterDecision, ClusterPolicy, ClusterView, JobView, Node, Placement

# A policy may know no priorities, and may stop one job to start another where it would be enough that a third shrinks.
# So a decision is adjusted twice:
#
# 1. *priority*: a job takes workers from jobs of lower priority, up to the number that its owner asked for, as long as
#    these have more than their fewest; to begin at all it takes, if need be, all of a job's workers: the lowest
#    priority first, and of equal ones the job that came last.
# 2. *rescue*: a job that runs, and is to have no worker, keeps its fewest where others have more than their own fewest,
#    if that is enough.


def yielded(cluster: ClusterView, allotments: Mapping[str, Allotment]) -> dict[str, Allotment]:
    """Return the allotments as they are carried out. Their sum stays within the devices of the cluster."""
    found = Shares(cluster, allotments)
    by_priority = sorted(cluster.jobs, key=lambda job: (-job.priority, job.submitted))
    for job in by_priority:
        found.prefer(job)
    for job in by_priority:
        if job.running and not found.workers(job):
            found.rescue(job)
    return found.allotments


class Shares:
    """Workers are counted by their devices."""

    def __init__(self, cluster: ClusterView, allotments: Mapping[str, Allotment]) -> None:
        self.allotments = {name: one for name, one in allotments.items() if one.workers}
        self._places = {job.name: place for place, job in enumerate(cluster.jobs)}
        self._jobs = cluster.jobs
        self._lowest = self._lowest_of_all()
        self._free = cluster.devices - sum(one.workers for one in self.allotments.values())

    def workers(self, job: JobView) -> int:
        return self.allotments[job.name].workers if job.name in self.allotments else 0

    def _holders(self) -> list[JobView]:
        """Return the jobs that have workers: at most as many as devices, however many wait."""
        return [self._jobs[place] for place in sorted(self._places[name] for name in self.allotments)]

    def _lowest_of_all(self) -> int:
        """Return the lowest priority of a job that has workers: a job of no higher priority takes from no other."""
        return min((job.priority for job in self._holders()), default=0)

    def rescue(self, job: JobView) -> None:
        others = [one for one in self._holders() if one.name != job.name and one.priority <= job.priority]
        if self._surplus(others) + self._free >= job.smallest:
            self._shrink(others, job.smallest, f"others shrink before {job.name} is sent away")
            self._give(job, job.smallest, "others have shrunk so that it can go on")

    def prefer(self, job: JobView) -> None:
        if job.priority <= self._lowest:
            return
        lower = [one for one in self._holders() if one.priority < job.priority]
        has = self.workers(job)
        if not lower or has >= job.request or has + self._free + sum(map(self.workers, lower)) < job.smallest:
            return
        self._shrink(lower, job.request - has, f"job {job.name} of priority {job.priority} is to train")
        for one in sorted(lower, key=lambda one: (one.priority, -one.submitted)):
            if has + self._free >= job.smallest:
                break
            if self.workers(one):
                self._free += self.allotments.pop(one.name).workers
        more = job.whole(min(job.request - has, self._free))
        if more:
            self._give(job, more, f"its priority of {job.priority} is higher than that of others")
        self._lowest = self._lowest_of_all()

    def _surplus(self, jobs: Sequence[JobView]) -> int:
        return sum(max(0, self.workers(job) - job.smallest) for job in jobs)

    def _shrink(self, jobs: Sequence[JobView], until_free: int, reason: str) -> None:
        """Take one worker after the other: from the lowest priority, there from the job with the most beyond its
        fewest.
        """
        while self._free < until_free:
            beyond = [job for job in jobs if self.workers(job) > job.smallest]
            if not beyond:
                return
            one = min(beyond, key=lambda job: (job.priority, job.smallest - self.workers(job), -job.submitted))
            before = self.allotments[one.name]
            self.allotments[one.name] = Allotment(before.workers - one.each, before.batch, reason)
            self._free += one.each

    def _give(self, job: JobView, more: int, reason: str) -> None:
        before = self.allotments.get(job.name, Allotment(0, job.running_batch if job.running else job.batch))
        self.allotments[job.name] = Allotment(before.workers + more, before.batch, reason)
        self._free -= more


BATCH_AGAIN_S = 30.0  # a batch that a job does not show is asked for again after this time
MOST_NAMED = 3
NONE_LEFT = "the cluster has no devices left for it"


def outlook(state: QueueState, speeds: LiveSpeeds, now: float) -> ClusterView:
    """Return the policy's view: jobs that wait or run, and devices that no other job holds."""
    jobs = [job for name in state.live if not (job := state.jobs[name]).over]
    jobs.sort(key=lambda job: (job.asked.submitted, job.name))
    decided = [job for job in jobs if _is_open(state, job, now)]
    views = [view(job, speeds.speed(job), state.room_for(job), _pace(state, job)) for job in decided]
    shown = within_quotas(views, state.rules.quotas, _going(state, {job.name for job in decided}))
    return ClusterView(tuple(_room(state, shown, now)), shown)


def _going(state: QueueState, decided: Collection[str]) -> Counter[str]:
    """Count the devices of each user beyond those that a policy decides about."""
    going: Counter[str] = Counter()
    for job in (state.jobs[name] for name in state.live):
        workers = len(job.workers) - (len(job.staying) if job.name in decided else 0)
        going[job.asked.user] += workers * job.asked.processes
    return going


def _pace(state: QueueState, job: JobEntry) -> ObservedPace:
    seen = state.seen_of(job)
    left = state.rules.guessed_left if seen.left is None else seen.left
    known = seen.left is not None and seen.look.step_s > 0  # of the present size
    return ObservedPace(
        left if state.rules.sees_left else None, left * seen.look.step_s if known else None, seen.boot_s
    )


def _is_open(state: QueueState, job: JobEntry, now: float) -> bool:
    if job.waits:
        return not state.draining and job.rests_until <= now and job.asked.min_np <= state.room_for(job)
    return job.phase in ACTIVE and bool(job.staying)


def _room(state: QueueState, views: Iterable[JobView], now: float) -> Iterable[Node]:
    """Yield the nodes with the devices that a policy may give out."""
    # A node that is away, or left out, has room for the workers there that are to stay. The devices of a preempted job
    # were given on when that was decided, though it holds them until it is saved: if they did not count, the next
    # decision would preempt another job for the same need.
    views = tuple(views)
    shown = {job.name for job in views}  # jobs whose leavers go by themselves: their devices can be counted on
    going = {name for name in state.live if state.jobs[name].phase is JobPhase.PREEMPTING}
    stays: Counter[str] = Counter()
    for job in views:
        stays.update(job.placement)
    held = (state.jobs[name].workers for name in state.live if name not in shown | going)
    others = Counter(worker.node for workers in held for worker in workers for _ in worker.devices)
    for name, node in state.nodes.items():
        count = max(stays[name], len(node.devices) - others[name]) if node.takes(now) else stays[name]
        if count:
            yield Node(name, count, closed=not node.takes(now))
    for name in sorted(stays.keys() - state.nodes.keys()):
        yield Node(name, stays[name], closed=True)


FreeDevices = dict[str, list[int]]  # by node
Seat = tuple[str, tuple[int, ...]]  # of a worker: its node and its devices


def decide(state: QueueState, policy: ClusterPolicy, speeds: LiveSpeeds, now: float) -> float | None:
    """Ask the policy what each job is to have from now on; return when to look again."""
    queue_migration.resume_or_end(state, now)
    shown = outlook(state, speeds, now)
    decision, said = _decision(policy, shown, now)
    if said:
        state.tell(now, "policy_failed", "", f"{said}: all stays as it is")
        return None
    allotments = yielded(shown, _clipped(shown, decision.allotments))
    wanted = {name: one.workers for name, one in allotments.items()}
    present = {job.name: dict(job.placement) for job in shown.jobs if job.workers and job.name in wanted}
    spread = {job.name for job in shown.jobs if state.jobs[job.name].asked.spread}
    each = {job.name: job.each for job in shown.jobs}
    found = place(shown.nodes, present, wanted, Rule.PACK, moves=False, spread=spread, each=each)
    before, state.desired = state.desired, {name: _in_workers(each[name], one) for name, one in found.items()}
    for_others = _for_whom(shown, allotments)
    for job in shown.jobs:
        _note(state, job.name, decision.notes.get(job.name, {}), now)
        _tell(state, job, allotments.get(job.name), sum(before.get(job.name, {}).values()), now, for_others)
    for job in shown.jobs:
        _carry_out(state, job, allotments.get(job.name), now, for_others)
    queue_migration.heed_decision(state, now)
    return decision.look_again


def _in_workers(each: int, devices: Placement) -> Placement:
    return {node: count // each for node, count in devices.items()}


def _for_whom(shown: ClusterView, allotments: Mapping[str, Allotment]) -> str:
    """Explain to its owner why a job has no device any more."""
    gains = [job for job in shown.jobs if job.name in allotments and allotments[job.name].workers > job.workers]
    first = sorted(gains, key=lambda job: (-job.priority, job.submitted))
    if not first:
        return NONE_LEFT
    named = [f"{job.name} of priority {job.priority}" if job.priority else job.name for job in first[:MOST_NAMED]]
    more = f" and {len(first) - MOST_NAMED} more" if len(first) > MOST_NAMED else ""
    return f"its devices are for job{'s' if len(first) > 1 else ''} {', '.join(named)}{more}"


def _decision(policy: ClusterPolicy, shown: ClusterView, now: float) -> tuple[ClusterDecision, str]:
    """Ask the policy. Return its decision and "", or an empty decision and what was wrong."""
    # A policy may be a user's own code, and must not crash the queue.
    try:
        decision = policy.decide(shown, now)
    except Exception as error:  # noqa: BLE001 - it is told, and the cluster stays as it is
        return ClusterDecision({}), f"{type(error).__name__}: {error}"
    asked = sum(one.workers for one in decision.allotments.values())
    if asked > shown.devices:
        return ClusterDecision({}), f"it gives {asked} devices, and there are {shown.devices}"
    return decision, ""


def _clipped(shown: ClusterView, allotments: dict[str, Allotment]) -> dict[str, Allotment]:
    """Bound the allotments by each job's limits, in whole workers: not every policy knows quotas, or processes."""
    views = {job.name: job for job in shown.jobs}
    return {
        name: Allotment(views[name].whole(min(one.workers, views[name].largest)), one.batch, one.reason)
        for name, one in allotments.items()
        if name in views and one.workers >= views[name].smallest
    }


def _note(state: QueueState, name: str, notes: dict[str, float], now: float) -> None:
    job = state.jobs[name]
    if notes != job.notes:
        state.put(job, now, notes=notes)


def _tell(
    state: QueueState, shown: JobView, allotted: Allotment | None, before: int, now: float, for_others: str
) -> None:
    """Record a decision about a job once, when it differs from the one before."""
    workers, was = sum(state.desired.get(shown.name, {}).values()), shown.workers // shown.each
    if workers not in {was, before}:
        words = f"from {was} to {workers} workers: {for_others if allotted is None else allotted.reason}"
        state.tell(now, "decision", shown.name, words, workers=workers, was=was)


def _carry_out(state: QueueState, shown: JobView, allotted: Allotment | None, now: float, for_others: str) -> None:
    job = state.jobs[shown.name]
    if shown.workers and allotted is None:
        send_away(state, job, for_others, now)
    elif allotted is not None and allotted.batch and job.asked.batch_range and job.phase in TRAINING:
        _batch(state, job, allotted, now)


def _batch(state: QueueState, job: JobEntry, allotted: Allotment, now: float) -> None:
    assert job.asked.batch_range is not None
    least, most = job.asked.batch_range
    batch = max(least, min(allotted.batch, most))
    seen = state.seen_of(job)
    if batch != (job.batch or seen.look.batch):
        state.put(job, now, batch=batch)
        why = allotted.reason or f"the policy's choice for {allotted.workers // job.asked.processes} workers"
        state.tell(now, "batch", job.name, f"{batch} samples a step: {why}", batch=batch)
    elif seen.look.batch in {0, batch} or now - seen.batch_at < BATCH_AGAIN_S:
        return  # else the request was lost: with a scheduler, with a leader, or with the life that received it
    seen.batch_at = now
    state.acts.append(ChangeBatch(job.name, batch))


# ------------------------------------------------------------------------------------------------ worker by worker


def seat(state: QueueState, now: float) -> None:
    """Give devices to jobs as far as they are free by now, higher priorities first."""
    free = _free(state, now)
    for name in sorted(
        state.desired, key=lambda name: (-state.jobs[name].asked.priority, state.jobs[name].since_phase)
    ):
        job, wanted = state.jobs[name], state.desired[name]
        if job.waits and not state.draining:
            _begin(state, job, wanted, free, now)
        elif job.phase in ACTIVE:
            _change(state, job, wanted, free, now)


def _begin(state: QueueState, job: JobEntry, wanted: Placement, free: FreeDevices, now: float) -> None:
    """Begin a job with all of its fewest workers at once, or none (gang); further ones come when their devices are
    free.
    """
    seats = _seats(free, wanted, job.asked.processes)[: _quota_left(state, job)]
    if len(seats) < job.asked.min_np or job.rests_until > now:
        return
    _take(free, seats)
    again = job.phase is JobPhase.PREEMPTED or job.life > 0
    life = job.life + 1
    workers = tuple(_worker(job, at, seat, life, now) for at, seat in enumerate(seats, 1))
    words = f"{len(workers)} workers on {', '.join(f'{node}: {count}' for node, count in wanted.items())}"
    state.turn(
        job,
        PhaseChange.PLACED_AGAIN if again else PhaseChange.PLACED,
        now,
        words,
        workers=workers,
        made=job.made + len(workers),
        life=life,
        ready=False,
        exits=(),
        changed=now,
        changes=job.changes + (job.life > 0),
        most_tried=max(job.most_tried, len(workers)),
        tries_left=job.tries_left or state.rules.retries.tries,
    )


def _worker(job: JobEntry, at: int, seat: Seat, life: int, now: float) -> WorkerEntry:
    number, (node, (device, *further)) = job.made + at, seat
    id_ = f"{job.name}-{number}"
    return WorkerEntry(id_, number, node, device, life=life, since=now, began=now, further=tuple(further))


def _free(state: QueueState, now: float) -> FreeDevices:
    """Return the free devices of nodes that take workers."""
    holders = [job for name in state.live if (job := state.jobs[name]).workers]
    there = {name: node for name, node in state.nodes.items() if node.takes(now)}
    return {name: free_devices(node.devices, name, holders) for name, node in there.items()}


def _seats(free: FreeDevices, wanted: Placement, each: int) -> list[Seat]:
    """Return the seats of a placement that are free, of `each` devices; fewer devices of a node are none."""
    return [
        (node, tuple(there[first : first + each]))
        for node, count in wanted.items()
        for there in (free.get(node, []),)
        for first in range(0, min(count, len(there) // each) * each, each)
    ]


def _quota_left(state: QueueState, job: JobEntry) -> int:
    """Count the workers that the job's user may have more. Devices that the user is about to give back still count."""
    user = job.asked.user
    if user not in state.rules.quotas:
        return job.asked.max_np
    others = (state.jobs[name] for name in state.live)
    held = sum(len(one.workers) * one.asked.processes for one in others if one.asked.user == user)
    return max(0, state.rules.quotas[user] - held) // job.asked.processes


def _take(free: FreeDevices, seats: Iterable[Seat]) -> None:
    for node, devices in seats:
        for device in devices:
            free[node].remove(device)


def _change(state: QueueState, job: JobEntry, wanted: Placement, free: FreeDevices, now: float) -> None:
    if not job.ready or not job.workers:
        return  # its life begins with what it was given, and is over with its last worker
    if job.moving and job.moving == wanted:
        _move(state, job, free, now)
        return
    has = placed(job)
    surplus = {node: count - wanted.get(node, 0) for node, count in has.items() if count > wanted.get(node, 0)}
    missing = {node: count - has.get(node, 0) for node, count in wanted.items() if count > has.get(node, 0)}
    if surplus and _shrink(state, job, surplus, now):
        return
    if missing:
        _grow(state, job, missing, free, now)


def _move(state: QueueState, job: JobEntry, free: FreeDevices, now: float) -> None:
    # A step waits until all earlier workers train: then no leaver is missed, and no newcomer is refused.
    if not queue_migration.is_settled(state, job):
        return
    step = next_step(job, queue_migration.surroundings(state, now).quotas)
    if step.come:
        _grow(state, job, step.come, free, now)
    elif step.go:
        _shrink(state, job, step.go, now)


def _shrink(state: QueueState, job: JobEntry, surplus: Placement, now: float) -> bool:
    """Tell the newest workers of each node to leave."""
    # One that does not train yet just ends; the oldest have the model.
    leavers: set[str] = set()
    for node, count in surplus.items():
        there = [worker for worker in job.staying if worker.node == node]
        leavers |= {worker.id for worker in sorted(there, key=lambda worker: -worker.number)[:count]}
    if len(job.staying) - len(leavers) < job.asked.min_np:
        return False
    job = state.wish(job, WorkerWish.LEAVE, now, frozenset(leavers))
    state.put(job, now, changed=now, changes=job.changes + 1)
    return True


def _grow(state: QueueState, job: JobEntry, missing: Placement, free: FreeDevices, now: float) -> None:
    """Add workers, also in the place of failed ones while there are tries left. A job that ends takes no more."""
    if state.is_ending(job):
        return
    if job.strikes and not job.tries_left:
        if len(job.staying) < job.asked.min_np:
            give_up(state, job, f"{job.reason}: too few workers are left, and no tries", now)
        return
    if job.rests_until > now:
        return
    seats = _seats(free, missing, job.asked.processes)[: min(job.vacancies, _quota_left(state, job))]
    if not seats:
        return
    _take(free, seats)
    workers = tuple(_worker(job, at, seat, job.life, now) for at, seat in enumerate(seats, 1))
    has = len(job.staying) + len(workers)
    state.put(
        job,
        now,
        workers=(*job.workers, *workers),
        made=job.made + len(workers),
        changed=now,
        changes=job.changes + 1,
        most_tried=max(job.most_tried, has),
    )


def within_quotas(
    jobs: Iterable[JobView], quotas: Mapping[str, int], held: Mapping[str, int] = MappingProxyType({})
) -> tuple[JobView, ...]:
    """Return the jobs that fit into their users' quotas, with their sizes bounded. Running jobs come first, then higher
    priorities, then the first that came. `held`: devices of a user's workers that are to leave, and of jobs that are
    over, saved or preempted.
    """
    jobs = tuple(jobs)
    if not quotas:
        return jobs
    room = {user: max(0, most - held.get(user, 0)) for user, most in quotas.items()}
    let_in: dict[str, JobView] = {}
    for job in sorted(jobs, key=lambda job: (not job.running, -job.priority, job.submitted)):
        if job.user not in room:
            let_in[job.name] = job
        elif job.smallest <= room[job.user]:
            room[job.user] -= job.smallest
            let_in[job.name] = job
    for name, job in let_in.items():
        if job.user in room:  # the first jobs get the room left beyond the smallest sizes of all
            largest = job.whole(min(job.largest, job.smallest + room[job.user]))
            room[job.user] -= largest - job.smallest
            request = max(job.smallest, min(job.request, largest))
            let_in[name] = msgspec.structs.replace(job, largest=largest, request=request)
    return tuple(let_in[job.name] for job in jobs if job.name in let_in)
