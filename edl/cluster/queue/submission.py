"""An owner's request, the submission made of it, and what is allowed. Pure.

The owner of the cluster may do everything. A user's token submits in that user's name, and opens that user's jobs; of
other users' jobs it shows that they exist and which devices they hold. This is a rule of the interface: jobs run as the
owner of the cluster, so a user who may submit is trusted as that owner is (docs/security.md).

Waiting jobs lie in the coordinator's memory: the heap of edl's own coordinator (`edl.coordination.zookeeper_server`)
has room for them. The variables of the jobs' owners lie in files, and take none of it.

Owns: which requests are complete and consistent, what the holder of a token may do, and the bounds of a queue with the
message to a user who would exceed them. Does not own: how requests are typed (`edl.cli`) or sent (`edl.scheduler`), nor
where tokens are kept (`edl.scheduler.tokens`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from edl.cluster.queue.job_view import JobShown, outlined
from edl.cluster.queue.queue_entries import NAME, Count, JobName, Submission
from edl.config.settings import MOST_PROCESSES
from edl.errors import ConfigError, UsageError

USER: Final = r"\A[A-Za-z0-9._@-]{1,64}\Z"
WORKER: Final = r"\A[A-Za-z0-9._-]{1,80}\Z"
MOST_PRIORITY: Final = 999_999
MOST_SECONDS: Final = 10 * 365 * 86_400.0
MOST_ENVIRON: Final = 4096  # variables

UserName = Annotated[str, msgspec.Meta(pattern=USER)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]


class JobWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field left out has the default of `edl submit`."""

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
    processes: Count = 1  # of each worker, each with a device of one node
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
    if wish.processes > MOST_PROCESSES:
        raise ConfigError(f"processes {wish.processes}: a worker has {MOST_PROCESSES} at most")
    if max_np * wish.processes > WORKERS:
        of = f" of {wish.processes} processes" if wish.processes > 1 else ""
        raise ConfigError(f"max_np {max_np}: a job has {WORKERS // wish.processes:,} workers{of} at most")
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
        processes=wish.processes,
    )


def check_fits(asked: Submission, nodes: Collection[int], *, flags: bool) -> None:
    """Refuse a job that could never begin on nodes of so many devices. `flags`: quote its request as flags. Raises
    ConfigError.
    """
    quote = ("--processes", "--min-np") if flags else ("processes", "min_np")
    each, most, devices = asked.processes, max(nodes, default=0), sum(nodes)
    if each > 1 and each > most:
        raise ConfigError(
            f"{quote[0]} {each}: a worker's processes are on one node, each with a device, and no node of the cluster "
            f"has more than {most}: ask for {most} at most, or start the cluster with larger nodes (--nodes)"
        )
    room = sum(one // each for one in nodes)
    if asked.min_np > room:
        of = f", and room for {room} workers of {each} processes" if each > 1 else ""
        raise ConfigError(f"{quote[1]} {asked.min_np}: the cluster has {devices} devices{of}: it would never begin")


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


LONGEST_TOKEN = 256


class TokenHolder(msgspec.Struct, frozen=True):
    """`user` empty: the owner of the cluster."""

    user: str = ""

    @property
    def owner(self) -> bool:
        return not self.user

    def may_open(self, user: str) -> bool:
        """Tell whether the holder may see what that user's jobs are and print, and end them."""
        return self.owner or self.user == user

    def sees(self, job: JobShown) -> JobShown:
        return job if self.may_open(job.user) else outlined(job)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def caller_of(header: str, owner: str, users: Mapping[str, str]) -> TokenHolder | None:
    """Return the holder of the token in `header`, an Authorization header. `owner`, `users`: digests."""
    # Each digest is compared, and each in constant time.
    kind, _, token = header.partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
        return None
    given = digest(token)
    found = None
    for user, known in (*users.items(), ("", owner)):
        if hmac.compare_digest(given, known):
            found = TokenHolder(user)
    return found


ENTRY_BYTES: Final = 64_000  # bound of a job as it was submitted: most of it is its command
ENVIRON_BYTES: Final = 400_000  # bound of its owner's environment variables
PATH_BYTES: Final = 1024  # bound of the paths of its folder and of its checkpoints, as the coordinator keeps them
WORKERS: Final = 2000  # most workers of a job, times their processes: its entry names all devices that it has
USERS: Final = 2  # so many users at their bounds fill the queue


class QueueShare(NamedTuple):
    """The room that jobs which are not over take of the queue."""

    jobs: int = 0
    entry_bytes: int = 0  # in the coordinator
    environ_bytes: int = 0  # in files

    def plus(self, other: QueueShare) -> QueueShare:
        return QueueShare(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))


OF_USER: Final = QueueShare(10_000, 24_000_000, 512_000_000)
OF_ALL: Final = QueueShare(*(USERS * one for one in OF_USER))
WORDS: Final = ("jobs", "bytes of jobs", "bytes of variables")


class QueueFull(UsageError):
    """The user, or all users together, have as much in the queue as they may."""


class QueueAccount:
    def __init__(self, held: Iterable[tuple[str, QueueShare]] = ()) -> None:
        self._users: dict[str, QueueShare] = {}
        for user, share in held:
            self.take(user, share)

    def take(self, user: str, share: QueueShare) -> None:
        self._users[user] = self._users.get(user, QueueShare()).plus(share)

    def check(self, user: str, share: QueueShare) -> None:
        """Raise QueueFull where one more job of the user has no room."""
        every = QueueShare()
        for one in self._users.values():
            every = every.plus(one)
        theirs = self._users.get(user, QueueShare())
        for whose, has, most in ((f"user {user} has", theirs, OF_USER), ("all users together have", every, OF_ALL)):
            for held, more, bound, words in zip(has, share, most, WORDS, strict=True):
                if held + more > bound:
                    raise QueueFull(
                        f"the queue is full: {whose} {held:,} {words} in it, and {bound:,} are allowed: wait until "
                        "some jobs are over, or cancel some by `edl cancel JOB`"
                    )
