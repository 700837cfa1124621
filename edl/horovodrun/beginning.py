"""What a job that horovodrun has started begins with: one of its first workers chooses, and all others are told.

Owns: when a life begins here, and what is said of it. Does not own: which checkpoint it goes on from
(`edl.checkpoints.lives`), nor what a former life has left in a coordinator (`edl.launch.former`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edl.config import Settings


class GoesOnFrom(msgspec.Struct, frozen=True):
    """Of one life."""

    life: int = 1  # its number
    path: str = ""  # of the checkpoint that it goes on from; empty: it begins anew


async def name_of(settings: Settings) -> str | None:
    """As it was given, or that of the only job which is saved there. Raises CheckpointError."""
    if settings.job is not None or not settings.checkpoint:
        return settings.job
    from edl.checkpoints.lives import only_job  # here and below: imports for jobs that are saved only
    from edl.launch.lives import in_a_thread

    return await in_a_thread(lambda: only_job(settings.checkpoint))


async def begin(settings: Settings, say: Callable[[str], object]) -> GoesOnFrom:
    """Raises ConfigError, UsageError, CheckpointError."""
    job = settings.job
    if not settings.checkpoint or job is None:
        return GoesOnFrom()
    if settings.coordinator is not None:
        from edl.launch.former import clear

        living = await clear(settings, say)
        if living is not None:  # by another line, with which these workers go
            return GoesOnFrom(path=living.resumed)
    from edl.checkpoints import lives
    from edl.launch.lives import in_a_thread

    found = await in_a_thread(lambda: lives.to_go_on_from(settings.checkpoint, job, settings.resume))
    life = await in_a_thread(lambda: lives.begin(settings.checkpoint, job, found))
    for line in lives.words_of(job, found):
        say(line)
    return GoesOnFrom(life.number, "" if life.checkpoint is None else life.checkpoint.path)
