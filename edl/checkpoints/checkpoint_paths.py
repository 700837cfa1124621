"""Resolution of a path that a user types: a folder or URL, a job in it, or a checkpoint of that job.

Owns: which implementation of the port serves a path, and what a path stands for. Does not own: reading the files there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from edl.checkpoints.checkpoint_names import CheckpointName, parse_name
from edl.checkpoints.checkpoint_storage import Files, NotAFile
from edl.checkpoints.local_folders import LocalFiles
from edl.checkpoints.object_store import ObjectFiles
from edl.checkpoints.part_layout import PartTitle
from edl.config.value_parsers import NAME
from edl.errors import UsageError

_FILE = re.compile(r"(file|local)://")


class JobFolder(NamedTuple):
    files: Files
    job: str

    def folder(self, name: CheckpointName) -> str:
        return f"{self.job}/{name}"

    def path(self, name: CheckpointName) -> str:
        """Return a checkpoint's path as people write it."""
        return f"{self.files.where}/{self.folder(name)}"

    def title(self, name: CheckpointName, number: int, of: int) -> PartTitle:
        return PartTitle(self.job, name, number, of)

    def names(self) -> list[CheckpointName]:
        """Return the names of all checkpoints, finished or not, newest first. Raises CheckpointError."""
        return sorted(filter(None, map(parse_name, self.files.names(self.job))), reverse=True)


class Located(NamedTuple):
    """The jobs, or the checkpoint, that a user's path stands for."""

    jobs: tuple[JobFolder, ...]
    name: CheckpointName | None  # the checkpoint, if the path names one


def files_at(where: str) -> Files:
    """Open a folder's path or a URL. Raises ConfigError if no library serves that URL."""
    if _FILE.match(where):
        return LocalFiles(Path(_FILE.sub("", where)))
    return ObjectFiles(where) if "://" in where or "::" in where else LocalFiles(Path(where).expanduser())


def look(path: str, job: str | None = None) -> Located:
    """Resolve `path`: a folder with jobs, the folder of one job, or a checkpoint. Raises UsageError if no checkpoint is
    there.
    """
    above, _, last = path.rstrip("/").rpartition("/")
    name = parse_name(last)
    if name is not None:
        root, _, owner = above.rpartition("/")
        return Located((JobFolder(files_at(_root(root, above)), owner),), name)
    files = files_at(path)
    found = files.names("")
    if any(map(parse_name, found)):
        if not above and not path.startswith("/"):
            return look(str(Path(path).absolute()), job)
        return Located((JobFolder(files_at(_root(above, path)), last),), None)
    jobs = [one for one in found if NAME.fullmatch(one) and _has_checkpoints(files, one)]
    if job is not None:
        if job not in jobs:
            there = f"; there are those of {', '.join(jobs)}" if jobs else ""
            raise UsageError(f"there is no checkpoint of job {job} in {files.where}{there}")
        jobs = [job]
    if not jobs:
        raise UsageError(f"there is no checkpoint in {files.where}: name the folder that --checkpoint named")
    return Located(tuple(JobFolder(files, one) for one in jobs), None)


def _root(found: str, below: str) -> str:
    if found:
        return found
    return "/" if below.startswith("/") else "."


def _has_checkpoints(files: Files, job: str) -> bool:
    try:
        return any(map(parse_name, files.names(job)))
    except NotAFile:  # notes.txt, say, which lies beside the jobs
        return False


def placed(path: str) -> tuple[JobFolder, CheckpointName]:
    """Return the job's folder and the name of the checkpoint with this path, which need not exist. Raises UsageError
    for any other path.
    """
    above, _, last = path.rstrip("/").rpartition("/")
    name, (root, _, job) = parse_name(last), above.rpartition("/")
    if name is None or not NAME.fullmatch(job):
        raise UsageError(f"{path} is no path of a checkpoint: it ends in JOB/LIFE-NUMBER-STEP")
    return JobFolder(files_at(_root(root, above)), job), name
