"""Choose the checkpoint that a job of horovodrun resumes from: one of its first workers chooses, for all others.

Owns: when a life begins here, and the messages about it. Does not own: the choice of the checkpoint
(`edl.checkpoints.resume_choice`), nor the nodes that an earlier life has left in a coordinator
(`edl.launch.job_leftovers`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edl.config import Settings


class GoesOnFrom(msgspec.Struct, frozen=True):
    """The checkpoint that one life of a job resumes from."""

    life: int = 1  # number of the life
    path: str = ""  # of the checkpoint; empty: the job begins anew


async def name_of(settings: Settings) -> str | None:
    """Return the job's name: the given one, or that of the only job saved in the folder. Raises CheckpointError."""
    if settings.job is not None or not settings.checkpoint:
        return settings.job
    from edl.checkpoints.resume_choice import only_job  # here and below: imports for jobs that are saved only
    from edl.launch.job_run import in_a_thread

    return await in_a_thread(lambda: only_job(settings.checkpoint))


async def begin(settings: Settings, say: Callable[[str], object]) -> GoesOnFrom:
    """Begin a life of the job; return the checkpoint that it resumes from. Raises ConfigError, UsageError,
    CheckpointError.
    """
    job = settings.job
    if not settings.checkpoint or job is None:
        return GoesOnFrom()
    if settings.coordinator is not None:
        from edl.launch.job_leftovers import clear

        living = await clear(settings, say)
        if living is not None:  # begun by another command line, which these workers join
            return GoesOnFrom(path=living.resumed)
    from edl.checkpoints import resume_choice
    from edl.launch.job_run import in_a_thread

    found = await in_a_thread(lambda: resume_choice.to_go_on_from(settings.checkpoint, job, settings.resume))
    life = await in_a_thread(lambda: resume_choice.begin(settings.checkpoint, job, found))
    for line in resume_choice.words_of(job, found):
        say(line)
    return GoesOnFrom(life.number, "" if life.checkpoint is None else life.checkpoint.path)
