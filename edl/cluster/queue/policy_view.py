"""A policy's view of a queue's live jobs, and the use that each job makes of the devices that it holds.

Owns: the view made of an entry, and the counting of device-seconds. Does not own: speeds (`edl.cluster.analyzer`), nor
the decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from edl.cluster.queue.phases import BOOTING, TRAINING, JobPhase
from edl.cluster.queue.queue_entries import JobEntry, WorkerWish
from edl.cluster.views import JobView, Placement, Speed

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
        used[use] = used.get(use, 0.0) + passed
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
    lost = min(job.used.get(TRAINED, 0.0), steps * step_s * max(1, job.started_with))
    if lost <= 0:
        return job
    used = {**job.used, TRAINED: job.used[TRAINED] - lost, LOST: job.used.get(LOST, 0.0) + lost}
    return msgspec.structs.replace(job, used=used)


class ObservedPace(msgspec.Struct, frozen=True):
    """The progress of a live job, as far as a `JobView` shows it."""

    left: float | None = None  # work
    left_s: float | None = None
    boot_s: float = 0.0


UNSEEN: Final = ObservedPace()


def view(job: JobEntry, speed: Speed, most: int, pace: ObservedPace = UNSEEN) -> JobView:
    """Return the policy's view of a job that is not over. `most`: devices that the cluster has."""
    asked = job.asked
    placement = (job.moving or placed(job)) if job.workers else {}
    np, max_np = (job.wanted, job.wanted) if job.wanted else (asked.np, asked.max_np)
    return JobView(
        name=job.name,
        submitted=asked.submitted,
        request=max(asked.min_np, min(np, most)),
        smallest=asked.min_np,
        largest=max(asked.min_np, min(max_np, most)),
        speed=speed,
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
        most_tried=job.most_tried,
        notes=job.notes,
    )


def placed(job: JobEntry) -> Placement:
    """Return the placement of the workers that are to stay."""
    return dict(Counter(worker.node for worker in job.staying))


def free_devices(devices: Iterable[int], node: str, jobs: Iterable[JobEntry]) -> list[int]:
    """Return the devices that no worker of any job holds, whatever its orders are (I17)."""
    held = {worker.device for job in jobs for worker in job.workers if worker.node == node}
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
