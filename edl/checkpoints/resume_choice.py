"""The beginning of a new life of a job: the checkpoint that it resumes from, and the life's number.

Owns: what `--resume` means. Does not own: reading a checkpoint (`edl.checkpoints.checkpoint_reader`), nor the data in
it (`edl.core.data.resume_position`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from edl.checkpoints.checkpoint_paths import JobFolder, files_at, look
from edl.checkpoints.checkpoint_reader import Checkpoint, Newest, PassedOver, chosen, newest
from edl.checkpoints.checkpoint_writer import begin_life
from edl.errors import CheckpointError, UsageError

GOES_ON = ("auto", "must")  # these resume from the newest checkpoint of the job
WORDS = (*GOES_ON, "never")


class NewLife(NamedTuple):
    number: int  # number of the life
    checkpoint: Checkpoint | None  # verified; None: the job begins anew
    passed_over: tuple[PassedOver, ...] = ()  # newer ones that are broken

    @property
    def step(self) -> int:
        """The step that this life resumes after, counted over all lives."""
        return 0 if self.checkpoint is None else self.checkpoint.step


def only_job(where: str) -> str | None:
    """Return the name of the only job with checkpoints at `where`, or None. Raises CheckpointError."""
    try:
        found = look(where)
    except UsageError:
        return None
    return found.jobs[0].job if len(found.jobs) == 1 and found.name is None else None


def begin(where: str, job: str, found: Newest) -> NewLife:
    """Begin the life that resumes from `found`. Raises CheckpointError."""
    return NewLife(begin_life(JobFolder(files_at(where), job)), *found)


def to_go_on_from(where: str, job: str, resume: str, since: int = 0) -> Newest:
    """Choose the checkpoint that the next life resumes from. `resume` is one of `WORDS`, or a path.

    `since` is the number of the first life after the one that heeded `resume`; later lives resume from one another.
    Raises UsageError, CheckpointError.
    """
    folder = JobFolder(files_at(where), job)
    if since and resume not in GOES_ON:
        found = newest(folder, since)
        if found.checkpoint is not None:
            return found
    if resume == "never":
        return Newest(None, ())
    if resume not in WORDS:
        return Newest(*chosen(look(resume)))
    best = newest(folder)
    if best.checkpoint is None and (resume == "must" or best.passed_over):
        why = f": {best.passed_over[0].reason}" if best.passed_over else ""
        raise CheckpointError(
            f"no checkpoint of job {folder.job} in {folder.files.where} can be gone on from{why}; with --resume never "
            "the job begins anew"
        )
    return best


def words_of(job: str, found: Newest) -> Iterator[str]:
    """Yield the lines that tell users of the choice."""
    for one in found.passed_over:
        yield f"{one.reason}; the one before it is taken"
    if found.checkpoint is not None:
        yield f"job {job} goes on from step {found.checkpoint.step}, {found.checkpoint.path}"
