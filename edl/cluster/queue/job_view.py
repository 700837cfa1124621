"""A queue's job as users see it: by `edl queue --json`, by the HTTP interface, on the cluster's page. Pure.

Owns: which parts of an entry are shown, and which of them to people whose job it is not. Does not own: the
presentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from edl.cluster.queue.end_causes import EndCause
from edl.cluster.queue.phases import TERMINAL, JobPhase
from edl.cluster.queue.queue_entries import DeviceHeld, JobEntry, QueueEvent

FINISHED: Final = JobPhase.FINISHED.value


class ShownWorker(msgspec.Struct, frozen=True):
    """A worker and its device."""

    id: str
    node: str
    device: int
    wish: str
    began: float = 0.0


class JobShown(msgspec.Struct, frozen=True):
    """The content of `edl describe --json`. Times are seconds since 1970."""

    name: str
    state: str
    reason: str
    cause: EndCause | None
    user: str
    priority: int
    np: int
    min_np: int
    max_np: int
    batch_range: tuple[int, int] | None
    deadline: float | None
    command: tuple[str, ...]
    folder: str
    checkpoint: str
    submitted: float
    began: float | None
    ended: float | None
    waited_s: float
    step: int
    lives: int
    preemptions: int
    changes: int
    batch: int
    tries_left: int
    workers: tuple[ShownWorker, ...]
    used_s: dict[str, float]
    events: tuple[QueueEvent, ...]
    wanted: int = 0  # workers that its owner has asked for since; 0: as it was submitted
    held: tuple[DeviceHeld, ...] = ()  # devices that the job held before, the newest

    @property
    def over(self) -> bool:
        return self.state in TERMINAL


class JobList(msgspec.Struct, frozen=True):
    """The content of `edl queue --json`."""

    jobs: tuple[JobShown, ...]


def shown(job: JobEntry, now: float) -> JobShown:
    asked = job.asked
    return JobShown(
        name=job.name,
        state=job.phase.value,
        reason=job.reason,
        cause=job.cause,
        user=asked.user,
        priority=asked.priority,
        np=asked.np,
        min_np=asked.min_np,
        max_np=asked.max_np,
        batch_range=asked.batch_range,
        deadline=asked.deadline,
        command=asked.command,
        folder=asked.folder,
        checkpoint=asked.checkpoint,
        submitted=asked.submitted,
        began=job.began,
        ended=job.ended,
        waited_s=job.waited + (max(0.0, now - job.since) if job.waits else 0.0),
        step=job.step,
        lives=job.life,
        preemptions=job.preemptions,
        changes=job.changes,
        batch=job.batch,
        tries_left=job.tries_left,
        workers=tuple(ShownWorker(one.id, one.node, one.device, one.wish.value, one.began) for one in job.workers),
        used_s=job.used,
        events=job.story,
        wanted=job.wanted,
        held=job.held,
    )


def left_out_by(story: Iterable[QueueEvent]) -> dict[str, tuple[float, str]]:
    """Return the nodes that were left out, by the cluster's events: until when, and the user whose jobs alone have
    failed there.
    """
    found: dict[str, tuple[float, str]] = {}
    for event in story:
        details, node = event.details, str(event.details.get("node"))
        if event.kind == "node_left_out" and details.keys() >= {"node", "until"}:
            found[node] = float(details["until"]), str(details.get("user", ""))
        elif event.kind == "node_let_in":
            found.pop(node, None)
    return found


def outlined(job: JobShown) -> JobShown:
    """Reduce a job for users whose job it is not: its existence and its devices, but not what it runs."""
    return msgspec.structs.replace(
        job, reason="", cause=None, command=(), folder="", checkpoint="", events=(), used_s={}
    )


def brief(job: JobShown) -> JobShown:
    """Reduce a job for a list: without its history."""
    return msgspec.structs.replace(job, events=(), held=())
