"""Bounds of a cluster's queue: of each job, of each user, and of all users together. Pure.

Waiting jobs lie in the coordinator's memory: the heap of edl's own coordinator (`edl.coordination.zookeeper_server`)
has room for them. The variables of the jobs' owners lie in files, and take none of it.

Owns: these bounds, and the message to a user who would exceed them. Does not own: where anything is stored
(`edl.scheduler`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from edl.errors import UsageError

ENTRY_BYTES: Final = 64_000  # bound of a job as it was submitted: most of it is its command
ENVIRON_BYTES: Final = 400_000  # bound of its owner's environment variables
PATH_BYTES: Final = 1024  # bound of the paths of its folder and of its checkpoints, as the coordinator keeps them
WORKERS: Final = 2000  # most workers of a job: its entry names those that it has
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
    """Add up what each user's jobs take of the queue."""

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
