"""Account for the device-seconds of jobs and users, by what they were used for.

Goodput is training that counts. Badput is all else that held a device: waiting for a script to boot, being saved,
leaving, and training that was lost with a failure. Owns: the sums. Does not own: the counting (`sights`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

import msgspec

from edl.cluster.queue.policy_view import BADPUT, TRAINED, counted
from edl.cluster.queue.queue_entries import JobEntry

COLUMNS = (
    "job", "user", "state", "submitted", "began", "ended", "waited_s", "ran_s", "device_s", "training_s",
    *(f"{cause}_s" for cause in BADPUT), "lives", "preemptions", "changes", "cause",
)  # fmt: skip


class JobAccount(msgspec.Struct, frozen=True):
    """The account of one job."""

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
    """The account of all jobs of one user."""

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
    """Sum up the accounts until `now`."""
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
    """Format the accounts as CSV, with a line for each job."""
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
