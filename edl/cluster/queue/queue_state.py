"""The state shared by the parts of the scheduler's machine: the jobs as decided, and the observations since it began.

Owns: that each change is counted, follows the table, and is made durable; a policy's view of live jobs, and the use
that each job makes of its devices. Does not own: speeds (`edl.cluster.speed_analyzer`), nor any decision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from edl.cluster.queue.queue_entries import (
    BOOTING,
    TERMINAL,
    TRAINING,
    DeviceHeld,
    JobEntry,
    JobPhase,
    PhaseChange,
    QueueEvent,
    WorkerEntry,
    WorkerWish,
    after,
)
from edl.cluster.queue.scheduler_inputs import Act, ClusterRules, JobLook
from edl.cluster.views import JobView, PerDevice, Placement, Speed

KEPT_REASON = 500
KEPT_EVENTS = 50
KEPT_HELD = 64
SAVE_TIMES = 3


@dataclass
class SeenNode:
    """A node whose agent has reported since this scheduler began."""

    devices: tuple[int, ...]
    there: bool = True
    failures: list[tuple[float, str]] = field(
        default_factory=list
    )  # when, and whose job's; empty: the agent has seen it
    left_out_until: float = 0.0
    left_out_for: str = ""  # the only user whose jobs have failed there
    closed_since: float = math.inf  # since when the node has had no devices to give

    def takes(self, now: float) -> bool:
        """Tell whether the node takes new workers."""
        return self.there and self.left_out_until <= now

    def is_closed(self, now: float, seconds: float) -> bool:
        """Tell whether the node has had no devices for `seconds`: an agent that begins has none for a moment."""
        return self.there and now - self.closed_since >= seconds


@dataclass
class SeenJob:
    """The observations of one life of a job, and the acts asked for."""

    life: int
    look: JobLook = field(default_factory=JobLook)
    asked: set[str] = field(default_factory=set)  # acts that are under way
    final: bool = False
    step_s: float = 0.0  # the newest known, also of the life before
    left: float | None = None  # likewise
    gone: set[str] = field(default_factory=set)  # workers that are gone
    batch_at: float = -math.inf  # when a batch was asked for
    save_s: float = 0.0  # the newest known, also of the life before
    boot_s: float = 0.0  # likewise: from the start of the newest workers until they trained
    booted: int = 0  # the number of the newest worker that has come to train
    over_since: float | None = None  # since when its leader has reported how the job ends


class QueueState:
    def __init__(self, rules: ClusterRules, jobs: dict[str, JobEntry]) -> None:
        self.rules = rules
        self.jobs = jobs
        self.nodes: dict[str, SeenNode] = {}
        self.seen: dict[str, SeenJob] = {}
        self.desired: dict[str, Placement] = {}
        self.live = {name for name, job in jobs.items() if not job.over or job.workers}
        self.draining = self.killing = False
        self.began = -math.inf  # when this scheduler began
        self.news = True  # something has happened that a decision may depend on
        self.changed: dict[str, JobEntry] = {}
        self.told: list[QueueEvent] = []
        self.acts: list[Act] = []

    def begin(self, now: float) -> None:
        """Bound recorded times by now, as schedulers before this one had clocks of their own."""
        self.began = now
        for name in self.live:
            job = self.jobs[name]
            self.jobs[name] = msgspec.structs.replace(
                job,
                since=min(job.since, now),
                since_phase=min(job.since_phase, now),
                changed=None if job.changed is None else min(job.changed, now),
                rests_until=min(job.rests_until, now + self.rules.retries.longest_rest_s),
                workers=tuple(msgspec.structs.replace(one, since=min(one.since, now)) for one in job.workers),
            )

    def seen_since(self, since: float) -> float:
        """Return from when on time counts for a deadline: not before this scheduler began."""
        return max(since, self.began)

    def put(self, job: JobEntry, now: float, **changes: Any) -> JobEntry:
        """Store the job, counted up to now and changed."""
        job = counted(job, now)
        before = job.workers
        job = msgspec.structs.replace(job, **changes) if changes else job
        job = _let_go(job, before, now)
        self.jobs[job.name] = self.changed[job.name] = job
        if job.over and not job.workers:
            self.live.discard(job.name)
        else:
            self.live.add(job.name)
        return job

    def turn(self, job: JobEntry, turn: PhaseChange, now: float, reason: str = "", **changes: Any) -> JobEntry:
        """Raises InvalidTransition."""
        phase = after(job.phase, turn)
        job = self.put(job, now)
        if phase in TERMINAL:
            changes.setdefault("ended", now)
        if phase not in TRAINING:
            changes.setdefault("moving", {})
        job = self.put(job, now, phase=phase, reason=reason[:KEPT_REASON], since_phase=now, **changes)
        self.tell(now, f"job_{phase.value}", job.name, reason)
        self.news = True
        return self.jobs[job.name]

    def wish(self, job: JobEntry, wish: WorkerWish, now: float, only: frozenset[str] | None = None) -> JobEntry:
        """Raise the wish of all the job's workers, or of those in `only`; a wish never weakens."""
        order = [WorkerWish.RUN, WorkerWish.LEAVE, WorkerWish.DIE]

        def told(worker: WorkerEntry) -> WorkerEntry:
            if (only is not None and worker.id not in only) or order.index(worker.wish) >= order.index(wish):
                return worker
            return msgspec.structs.replace(worker, wish=wish, since=now)

        workers = tuple(map(told, job.workers))
        return self.put(job, now, workers=workers) if workers != job.workers else job

    def tell(self, now: float, kind: str, name: str, words: str, **details: str | float) -> None:
        event = QueueEvent(now, kind, name, words[:KEPT_REASON], dict(details))
        self.told.append(event)
        job = self.jobs.get(name)
        if job is not None:
            job = msgspec.structs.replace(job, story=(*job.story, event)[-KEPT_EVENTS:])
            self.jobs[name] = self.changed[name] = job

    def room_for(self, job: JobEntry) -> int:
        """Count the workers of the job that all nodes together hold: a node with fewer devices than a worker's
        processes holds none.
        """
        return sum(len(node.devices) // job.asked.processes for node in self.nodes.values())

    def left_out(self, now: float) -> tuple[str, ...]:
        return tuple(name for name, node in self.nodes.items() if node.left_out_until > now)

    def seen_of(self, job: JobEntry) -> SeenJob:
        """Return the observations of the job's present life."""
        seen = self.seen.get(job.name)
        if seen is None or seen.life != job.life:
            before = seen or SeenJob(0)
            seen = self.seen[job.name] = SeenJob(
                job.life, step_s=before.step_s, left=before.left, save_s=before.save_s, boot_s=before.boot_s
            )
        return seen

    def is_ending(self, job: JobEntry) -> bool:
        """Tell whether the present life ends: a worker has finished, or the leader has reported how the job ends."""
        return any(one.cause is None for one in job.exits) or self.seen_of(job).look.over

    def save_s(self, job: JobEntry) -> float:
        """Return for how long the job may be saved before it is preempted: a multiple of the time that saving took
        before.
        """
        known = max(self.rules.save_s, SAVE_TIMES * self.seen_of(job).save_s)
        return max(job.save_s, min(known, self.rules.longest_save_s))

    def ends_until(self, job: JobEntry) -> float | None:
        """Return until when the job's workers may go on after its leader has reported how it ends; None: it has not."""
        seen = self.seen.get(job.name)
        if seen is None or seen.over_since is None or seen.life != job.life or job.over or job.waits:
            return None
        return seen.over_since + (self.rules.fail_s if seen.look.state == "failed" else self.rules.end_s)

    def concerns_others(self, user: str) -> bool:
        """Return True if `user` is named and another user has a job."""
        return bool(user) and any(self.jobs[name].asked.user != user for name in self.live)

    def ask(self, job: JobEntry, what: str, act: Act) -> None:
        """Ask for an act once, as far as this scheduler knows."""
        seen = self.seen_of(job)
        if what not in seen.asked:
            seen.asked.add(what)
            self.acts.append(act)


def _let_go(job: JobEntry, before: tuple[WorkerEntry, ...], now: float) -> JobEntry:
    """Keep a record of which worker had which device until when."""
    there = {worker.id for worker in job.workers}
    gone = tuple(
        DeviceHeld(worker.id, worker.node, device, worker.began, now)
        for worker in before
        if worker.id not in there
        for device in worker.devices
    )
    return msgspec.structs.replace(job, held=(*job.held, *gone)[-KEPT_HELD:]) if gone else job


TRAINED: Final = "training"
LOST: Final = "lost"
BADPUT: Final = ("starting", "resuming", "preempting", "leaving", "ending", LOST)
CHANGE_S: Final = 0.5  # seconds that a change of a live job costs it, as measured: docs/benchmarks.md


def counted(job: JobEntry, now: float) -> JobEntry:
    """Return the entry with the time since the last count added."""
    passed = max(0.0, now - job.since)
    used = dict(job.used)
    for worker in job.workers:
        use = _use(job, worker.wish)
        used[use] = used.get(use, 0.0) + passed * len(worker.devices)
    holds = bool(job.workers)
    return msgspec.structs.replace(
        job,
        since=max(now, job.since),
        used=used,
        ran=job.ran + (passed if holds and not job.over else 0.0),
        waited=job.waited + (passed if job.waits else 0.0),
    )


def wasted(job: JobEntry, steps: int, step_s: float) -> JobEntry:
    """Count the devices' time of `steps` steps as lost: these are to be made again."""
    lost = min(job.used.get(TRAINED, 0.0), steps * step_s * max(1, job.started_with) * job.asked.processes)
    if lost <= 0:
        return job
    used = {**job.used, TRAINED: job.used[TRAINED] - lost, LOST: job.used.get(LOST, 0.0) + lost}
    return msgspec.structs.replace(job, used=used)


class ObservedPace(msgspec.Struct, frozen=True):
    left: float | None = None  # work
    left_s: float | None = None
    boot_s: float = 0.0


UNSEEN: Final = ObservedPace()


def view(job: JobEntry, speed: Speed, most: int, pace: ObservedPace = UNSEEN) -> JobView:
    """Return the policy's view of a job that is not over. `most`: workers of the job that the cluster has room for."""
    asked, each = job.asked, job.asked.processes
    placed_at = (job.moving or placed(job)) if job.workers else {}
    placement = {node: count * each for node, count in placed_at.items()}
    np, max_np = (job.wanted, job.wanted) if job.wanted else (asked.np, asked.max_np)
    return JobView(
        name=job.name,
        submitted=asked.submitted,
        request=max(asked.min_np, min(np, most)) * each,
        smallest=asked.min_np * each,
        largest=max(asked.min_np, min(max_np, most)) * each,
        speed=speed if each == 1 else PerDevice(speed, each),
        each=each,
        batch=job.batch,
        user=asked.user,
        priority=asked.priority,
        deadline=asked.deadline,
        left=pace.left,
        change_s=CHANGE_S,
        boot_s=pace.boot_s,
        left_s=pace.left_s,
        workers=sum(placement.values()),
        running_batch=job.batch if placement else 0,
        placement=placement,
        service=job.service,
        ran=job.ran,
        waited=job.waited,
        waits_since=job.since if job.waits else None,
        began=job.began,
        changed=job.changed,
        changes=job.changes,
        most_tried=job.most_tried * each,
        notes=job.notes,
    )


def placed(job: JobEntry) -> Placement:
    """Return the placement of the workers that are to stay."""
    return dict(Counter(worker.node for worker in job.staying))


def free_devices(devices: Iterable[int], node: str, jobs: Iterable[JobEntry]) -> list[int]:
    """Return the devices that no worker of any job holds, whatever its orders are (I17)."""
    held = {device for job in jobs for worker in job.workers if worker.node == node for device in worker.devices}
    return [device for device in devices if device not in held]


def _use(job: JobEntry, wish: WorkerWish) -> str:
    if job.over:
        return "ending"
    if wish is WorkerWish.DIE:
        return "leaving"
    if job.phase in BOOTING:
        return "resuming" if job.phase is JobPhase.RESUMING else "starting"
    if job.phase in TRAINING:
        return TRAINED
    return "preempting"
