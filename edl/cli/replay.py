"""`edl replay`: compute parts of a step again, from a checkpoint, and compare them with those of the run.

The job's own script runs once more, by one worker, from the newest checkpoint before the step, or from the beginning
where there is none. With virtual workers it makes the same numbers as the run did, and its audit has their digests, as
the run's audit has.

Owns: which checkpoint, the run of that worker, and what is told. Does not own: digests of parts
(`edl.trainer.virtual_steps`), nor comparing them (`edl.core.audit.kept_steps`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edl.checkpoints.checkpoint_paths import JobFolder, files_at
from edl.checkpoints.checkpoint_reader import Unfinished, open_checkpoint
from edl.checkpoints.manifest import Broken
from edl.cli import tables
from edl.config import Settings, scrubbed
from edl.core.audit.kept_steps import ReplayedPart, compared, digests_of
from edl.errors import JobFailed, UsageError
from edl.launch.job_records import LaunchRecord, find
from edl.trainer.data.audit_files import read

DIFFERS = 1
SELDOM = "999999999steps"  # so the job that replays saves nothing while it does


def replay(arguments: argparse.Namespace) -> int:
    settings = Settings.from_given(arguments.given, os.environ)
    step, chosen = _whole(arguments.step, 1, "step"), arguments.virtual_worker
    virtual = None if chosen is None else _whole(chosen, 0, "virtual-worker")
    record = _record(settings, arguments.job)
    job = record.job
    if virtual is not None and virtual >= record.virtual_workers:
        raise UsageError(f"--virtual-worker {virtual}: job {job} has 0 to {record.virtual_workers - 1}")
    known = digests_of([one for one in read(Path(record.audit)) if one.job == job])
    if not any(key.step == step for key in known):
        newest = max((key.step for key in known), default=0)
        raise UsageError(f"--step {step}: the audit of job {job} has digests of steps up to {newest}")
    path, begun = _newest_before(record, step)
    if begun:
        tables.complain(f"replaying steps {begun + 1} to {step} from {path}")
    else:
        tables.complain(f"replaying steps 1 to {step} from the beginning: there is no checkpoint before")
    with tempfile.TemporaryDirectory(prefix="edl-replay-") as folder:
        code = _run(record, path, step, Path(folder))
        audits = read(Path(folder) / "audit") if any(Path(folder).glob("audit/*")) else []
        found = compared(known, digests_of(audits))
    of_step = [one for one in found if one.key.step == step and virtual in {None, one.key.virtual}]
    if not of_step:
        raise JobFailed(f"the replay ended before step {step}, with exit code {code}: see what it has printed")
    return _told(found, of_step, step)


def _told(found: Sequence[ReplayedPart], of_step: Sequence[ReplayedPart], step: int) -> int:
    """Tell what came out; return the exit code."""
    for one in of_step:
        here = f"{one.here:016x} here"
        run = ", ".join(f"{digest:016x}" for digest in one.in_run)
        loop = f", loop {one.key.loop + 1}" if one.key.loop else ""
        words = f"same: {here}" if one.is_same else f"differs: {here}, {run} in the run"
        tables.say(f"step {step}, virtual worker {one.key.virtual}{loop}: {words}", "" if one.is_same else "red")
    earlier = next((one.key for one in found if not one.is_same and one.key.step < step), None)
    if earlier is not None:
        tables.say(f"first to differ: step {earlier.step}, virtual worker {earlier.virtual}")
    return 0 if all(one.is_same for one in of_step) else DIFFERS


def _record(settings: Settings, job: str) -> LaunchRecord:
    """Return the job's record, with all that a replay needs. Raises UsageError."""
    folder = find(settings.home, job)
    record = None if folder is None else folder.read()
    if record is None:
        raise UsageError(f"job {job} was not started on this machine: replay it where `edl run` was called")
    if not record.virtual_workers:
        raise UsageError(f"job {job} has no virtual workers, and only theirs give the same numbers again")
    if not record.audit:
        raise UsageError(f"job {job} was started without --audit DIR, where digests of parts are kept")
    return record


def _newest_before(record: LaunchRecord, step: int) -> tuple[str, int]:
    """Return the newest whole checkpoint with fewer steps, and how many; none, and 0, if there is none."""
    if not record.checkpoint:
        return "", 0
    folder = JobFolder(files_at(record.checkpoint), record.job)
    for name in folder.names():
        try:
            found = open_checkpoint(folder, name)
            if found.step < step:
                found.verify()
                return found.path, found.step
        except (Unfinished, Broken):  # as where a job resumes
            continue
    return "", 0


def _run(record: LaunchRecord, path: str, step: int, folder: Path) -> int:
    """Run the script up to `step`, as a job whose records lie in `folder`. Return its exit code."""
    flags = ["-np", "1", "--min-np", "1", "--max-restarts", "0", "--virtual-workers", str(record.virtual_workers)]
    flags += ["--ring", record.ring, "--audit", str(folder / "audit"), "--warm-starts", "off"]
    flags += ["--local-coordinator", "embedded"]
    if path:
        flags += ["--checkpoint", str(folder / "saved"), "--checkpoint-every", SELDOM, "--resume", path]
    environ = {**scrubbed(os.environ, credentials=True), "EDL_HOME": str(folder), "EDL_REPLAY": str(step)}
    line = [sys.executable, "-m", "edl", "run", *flags, "--", *record.command]
    return subprocess.run(
        line, cwd=record.directory, env=environ, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
    ).returncode


def _whole(text: str, least: int, name: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"--{name} {text}: must be a whole number of at least {least}")
    return int(text)
