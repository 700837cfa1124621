"""An owner's request, and the submission made of it. Pure.

Owns: which requests are complete and consistent. Does not own: how they are typed (`edl.cli`) or sent
(`edl.scheduler`).
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from edl.cluster.queue.queue_bounds import PATH_BYTES, WORKERS
from edl.cluster.queue.queue_entries import NAME, Count, JobName, Submission
from edl.errors import ConfigError

USER: Final = r"\A[A-Za-z0-9._@-]{1,64}\Z"
WORKER: Final = r"\A[A-Za-z0-9._-]{1,80}\Z"
MOST_PRIORITY: Final = 999_999
MOST_SECONDS: Final = 10 * 365 * 86_400.0
MOST_ENVIRON: Final = 4096  # variables

UserName = Annotated[str, msgspec.Meta(pattern=USER)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]


class JobWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to run a job. A field left out has the default of `edl submit`."""

    name: JobName
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=10_000)]
    folder: str  # of the cluster's machine, in which it runs
    user: UserName | None = None  # the job's owner; left out: the holder of the token
    np: Count | None = None
    min_np: Count = 1
    max_np: Count | None = None
    batch_range: tuple[Samples, Samples] | None = None
    priority: Annotated[int, msgspec.Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)] | None = None
    checkpoint: str = ""
    spread: bool = False
    environ: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_ENVIRON)] = {}
    ticket: Annotated[str, msgspec.Meta(max_length=64)] = ""  # the same ticket again is the same submission


class SizeWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most workers that a job is to have, within the bounds that it was submitted with; null: as it was
    submitted.
    """

    np: Count | None


def submission(wish: JobWish, user: str, now: float) -> Submission:
    """Raises ConfigError."""
    np = max(wish.np or 1, wish.min_np)
    max_np = wish.max_np or np
    if not np <= max_np:
        raise ConfigError(f"max_np {max_np}: must be at least np, which is {np}")
    if max_np > WORKERS:
        raise ConfigError(f"max_np {max_np}: a job has {WORKERS:,} workers at most")
    if wish.batch_range is not None and wish.batch_range[0] > wish.batch_range[1]:
        raise ConfigError(f"batch_range {list(wish.batch_range)}: must be the fewest samples a step and the most")
    if not wish.folder.startswith("/") or "\0" in wish.folder:
        raise ConfigError(f"folder {wish.folder!r}: must be a whole path on the cluster's machine, such as /home/ann")
    for field, path in (("folder", wish.folder), ("checkpoint", wish.checkpoint)):
        if (long := len(msgspec.json.encode(path))) > PATH_BYTES:
            raise ConfigError(f"{field}: a path of {long:,} bytes, and {PATH_BYTES:,} are allowed: name a shorter one")
    if any("\0" in text for text in (*wish.command, wish.checkpoint, *wish.environ, *wish.environ.values())):
        raise ConfigError("no command, variable or path has a null character in it")
    if wrong := [name for name in wish.environ if not re.fullmatch(r"[^=\0]+", name)]:
        raise ConfigError(f"environ: {wrong[0]!r} is no name of a variable")
    return Submission(
        name=wish.name,
        command=wish.command,
        folder=wish.folder,
        user=user,
        submitted=now,
        np=np,
        min_np=wish.min_np,
        max_np=max_np,
        batch_range=wish.batch_range,
        priority=wish.priority,
        deadline=None if wish.deadline_s is None else now + wish.deadline_s,
        checkpoint=wish.checkpoint,
        spread=wish.spread,
        ticket=wish.ticket,
    )


def checked_name(name: str) -> str:
    """Raises ConfigError."""
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"{name!r} is no name of a job: 1 to 48 letters, digits, '.', '_' or '-'")
    return name


def checked_worker(worker: str) -> str:
    """Raises ConfigError."""
    if not re.fullmatch(WORKER, worker):
        raise ConfigError(f"{worker!r} is no worker's id: 1 to 80 letters, digits, '.', '_' or '-'")
    return worker
