"""Variables of jobs that wait lie in private files, within bounds, and no longer than their jobs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edl.cluster.queue import submission
from edl.cluster.queue.queue_entries import JobEntry, JobPhase, Submission
from edl.cluster.queue.submission import QueueFull, QueueShare
from edl.coordination.memory_store import MemoryServer
from edl.errors import ConfigError, EdlError, Fenced
from edl.scheduler import environ_files
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import QueueStore

FENCE = "/fence"


def asked(name: str, user: str = "ann") -> Submission:
    return Submission(name, ("train",), "/", user, 1.0)


def test_they_are_read_as_they_were_given_and_by_their_owner_alone(tmp_path: Path) -> None:
    files = EnvironFiles(tmp_path)
    name = files.keep(asked("a", "../a~b/é"), 100, {"X": "1", "É": "\n~"})
    assert EnvironFiles(tmp_path).read(name) == {"X": "1", "É": "\n~"}
    [path] = tmp_path.iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == (name, 0o600)
    files.forget({name, "none"})
    assert files.names() == frozenset()
    with pytest.raises(EdlError, match="cannot be read: No such file"):
        files.read(name)


def test_one_that_is_not_whole_is_not_used(tmp_path: Path) -> None:
    files = EnvironFiles(tmp_path)
    name = files.keep(asked("a"), 100, {"X": "1"})
    (tmp_path / name).write_bytes(b'{"X":')
    with pytest.raises(EdlError, match=r"not whole in .*: submit it again"):
        files.read(name)


def test_a_folder_that_takes_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"variables cannot be kept in .*none: No such file"):
        EnvironFiles(tmp_path / "none").keep(asked("a"), 100, {})
    assert EnvironFiles(tmp_path / "none").names() == frozenset()


def test_the_folder_is_the_account_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "OF_USER", QueueShare(3, 1000, 1000))
    files, others = EnvironFiles(tmp_path), EnvironFiles(tmp_path)
    names = [files.keep(asked("a"), 100, {}), others.keep(asked("b"), 100, {}), files.keep(asked("c"), 100, {})]
    monkeypatch.setattr(environ_files, "COUNT_S", 0.0)
    with pytest.raises(QueueFull, match="user ann has 3 jobs in it, and 3 are allowed"):
        others.keep(asked("d"), 100, {})
    files.keep(asked("d", "bob"), 100, {})
    monkeypatch.setattr(environ_files, "COUNT_S", 1e9)
    others.forget(names[:1])
    files.keep(asked("e"), 100, {})  # who would be refused is counted anew
    with pytest.raises(QueueFull):
        files.keep(asked("f"), 100, {})
    assert len(files.names()) == 4


async def queue_in(folder: Path) -> tuple[QueueStore, EnvironFiles]:
    files = EnvironFiles(folder)
    queue = QueueStore(MemoryServer().connect(), files)
    await queue.prepare()
    await queue.store.create(FENCE)
    return queue, files


async def test_they_go_with_their_jobs_and_those_of_no_job_at_the_second_look(tmp_path: Path) -> None:
    queue, files = await queue_in(tmp_path)
    for name in ("waits", "over"):
        await queue.submit(asked(name), {"X": name})
    jobs = {job.name: job for job in await queue.jobs()}
    jobs["over"] = msgspec.structs.replace(jobs["over"], phase=JobPhase.CANCELLED)
    lost = files.keep(asked("lost"), 100, {})
    await queue.sweep_environs(jobs.values(), FENCE)
    assert files.names() == {jobs["waits"].environ, lost}
    late = files.keep(asked("late"), 100, {})
    await queue.sweep_environs(jobs.values(), FENCE)
    assert files.names() == {jobs["waits"].environ, late}
    jobs["late"] = JobEntry(asked("late"), environ=late)
    await queue.sweep_environs(jobs.values(), FENCE)
    assert files.names() == {jobs["waits"].environ, late}


async def test_a_scheduler_that_was_paused_sweeps_nothing_of_jobs_that_it_has_not_heard_of(tmp_path: Path) -> None:
    queue, files = await queue_in(tmp_path)
    lost = files.keep(asked("lost"), 100, {})
    await queue.submit(asked("late"), {"X": "1"})
    there = files.names()
    await queue.sweep_environs((), FENCE)
    await queue.store.delete(FENCE)  # another leads
    with pytest.raises(Fenced):
        await queue.sweep_environs((), FENCE)
    assert files.names() == there
    await queue.store.create(FENCE)
    await queue.sweep_environs((), FENCE)
    assert files.names() == there - {lost}
