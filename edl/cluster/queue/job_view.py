"""A queue's job as users see it, and the devices' use: in `edl queue --json`, by HTTP, on the cluster's page. Pure.

Goodput is training that counts. Badput is all else that held a device: waiting for a script to boot, being saved,
leaving, and training that was lost with a failure.

Owns: which parts of an entry are shown, which of them to people whose job it is not, and the sums of device-seconds.
Does not own: the presentation, nor the counting (`queue_state`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Final

import msgspec

from edl.cluster.queue.end_causes import EndCause
from edl.cluster.queue.queue_entries import TERMINAL, DeviceHeld, JobEntry, JobPhase, QueueEvent
from edl.cluster.queue.queue_state import BADPUT, TRAINED, counted

FINISHED: Final = JobPhase.FINISHED.value


class ShownWorker(msgspec.Struct, frozen=True):
    id: str
    node: str
    device: int
    wish: str
    began: float = 0.0
    further: tuple[int, ...] = ()  # devices of its further processes

    @property
    def devices(self) -> tuple[int, ...]:
        return (self.device, *self.further)

    @property
    def on(self) -> str:
        return f"device{'s' if self.further else ''} {', '.join(map(str, self.devices))}"


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
    processes: int = 1  # of each worker

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
        workers=tuple(
            ShownWorker(one.id, one.node, one.device, one.wish.value, one.began, one.further) for one in job.workers
        ),
        used_s=job.used,
        events=job.story,
        wanted=job.wanted,
        held=job.held,
        processes=asked.processes,
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
    """Show other users that the job exists and what devices it has, but not what it runs."""
    return msgspec.structs.replace(
        job, reason="", cause=None, command=(), folder="", checkpoint="", events=(), used_s={}
    )


def brief(job: JobShown) -> JobShown:
    """Leave out a job's history, for a list."""
    return msgspec.structs.replace(job, events=(), held=())


COLUMNS = (
    "job", "user", "state", "submitted", "began", "ended", "waited_s", "ran_s", "device_s", "training_s",
    *(f"{cause}_s" for cause in BADPUT), "lives", "preemptions", "changes", "cause",
)  # fmt: skip


class JobAccount(msgspec.Struct, frozen=True):
    job: str
    user: str
    state: str
    submitted: float
    began: float | None
    ended: float | None
    waited_s: float
    ran_s: float
    device_s: float
    training_s: float
    badput_s: dict[str, float]
    lives: int
    preemptions: int
    changes: int
    cause: str


class UserAccount(msgspec.Struct, frozen=True):
    user: str
    jobs: int
    device_s: float
    training_s: float
    badput_s: dict[str, float]


class Accounts(msgspec.Struct, frozen=True):
    """The content of `edl cluster accounts --json`."""

    jobs: tuple[JobAccount, ...]
    users: tuple[UserAccount, ...]


def accounts_of(jobs: Iterable[JobEntry], now: float) -> Accounts:
    found = tuple(map(_of, (job if job.over and not job.workers else counted(job, now) for job in jobs)))
    names = sorted({job.user for job in found})
    return Accounts(found, tuple(_user(name, [job for job in found if job.user == name]) for name in names))


def row(job: JobAccount) -> tuple[object, ...]:
    """Return the columns of `COLUMNS`. A user's name that a spreadsheet would take for a formula is quoted."""
    badput = (f"{job.badput_s.get(cause, 0.0):.1f}" for cause in BADPUT)
    times = (f"{job.waited_s:.1f}", f"{job.ran_s:.1f}", f"{job.device_s:.1f}", f"{job.training_s:.1f}")
    began, ended = ("" if one is None else f"{one:.1f}" for one in (job.began, job.ended))
    user = f"'{job.user}" if job.user[:1] in "=+-@" else job.user
    place = (job.job, user, job.state, f"{job.submitted:.1f}", began, ended)
    return (*place, *times, *badput, job.lives, job.preemptions, job.changes, job.cause)


def as_csv(found: Accounts) -> str:
    """Write a line for each job."""
    writer = csv.writer(text := io.StringIO())
    writer.writerow(COLUMNS)
    writer.writerows(map(row, found.jobs))
    return text.getvalue()


def _of(job: JobEntry) -> JobAccount:
    return JobAccount(
        job=job.name,
        user=job.asked.user,
        state=job.phase.value,
        submitted=job.asked.submitted,
        began=job.began,
        ended=job.ended,
        waited_s=job.waited,
        ran_s=job.ran,
        device_s=job.service,
        training_s=job.used.get(TRAINED, 0.0),
        badput_s={use: seconds for use, seconds in sorted(job.used.items()) if use != TRAINED},
        lives=job.life,
        preemptions=job.preemptions,
        changes=job.changes,
        cause="" if job.cause is None else job.cause.code,
    )


def _user(user: str, jobs: list[JobAccount]) -> UserAccount:
    badput: dict[str, float] = {}
    for job in jobs:
        for use, seconds in job.badput_s.items():
            badput[use] = badput.get(use, 0.0) + seconds
    return UserAccount(user, len(jobs), sum(job.device_s for job in jobs), sum(job.training_s for job in jobs), badput)
