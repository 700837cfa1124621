"""Deaths, power cuts, full disks and bad stores while checkpoints are written: durable or absent (I16).

Real bytes on a real disk. What loads afterwards is the newest that was told durable, or a newer one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from dying import until_death
from fsspec.implementations.memory import MemoryFileSystem
from s3_store import WELL, found_by_this_process, one_in_three, serving
from stored import check_contents, folder_at, named, save, two_saves, unflushed

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_paths import JobFolder
from edl.checkpoints.checkpoint_reader import Unfinished, newest, open_checkpoint
from edl.checkpoints.object_store import ObjectFiles
from edl.checkpoints.publishing import prune
from edl.errors import CheckpointError

pytestmark = pytest.mark.integration


def check(folder: JobFolder, told: list[int]) -> None:
    found = newest(folder)
    assert found.checkpoint is not None
    assert found.checkpoint.manifest.step >= max(told)
    check_contents(found.checkpoint)


def halves(folder: JobFolder) -> Iterator[str]:
    """What is neither a checkpoint nor known to be none: not even that is left, also where old ones were removed.

    Without hard links a manifest may be: its name is taken first.
    """
    for name in folder.names():
        try:
            open_checkpoint(folder, name).verify()
        except Unfinished:
            continue
        except CheckpointError as error:
            yield str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "links", [pytest.param(True, id="links"), pytest.param(False, id="without links", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize(  # soak: a power cut leaves less than a kill does
    "power", [pytest.param(False, id="killed", marks=pytest.mark.soak), pytest.param(True, id="power cut")]
)
def test_a_death_at_any_system_call_costs_nothing_that_was_told_durable(tmp_path, power, links, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # the child's disk is one that minds; this one need not work
    first, root = tmp_path / "first", tmp_path / "run" / "checkpoints"
    save(folder_at(first), named(10), parts=2)
    ended = died = 0
    told: list[int] = []
    for at in itertools.count(1):
        shutil.rmtree(root.parent, ignore_errors=True)
        shutil.copytree(first, root)
        told, was_killed = until_death(root, at, partial(two_saves, root), power=power, links=links)
        check(folder_at(root), [10, *told])
        assert not links or not list(halves(folder_at(root)))
        if not was_killed:
            ended = at
            break
        died += 1
        if at % 5 == 0:  # the job goes on in another life, and finds its way
            save(folder_at(root), CheckpointName(2, 1, 5))
            prune(folder_at(root), 1)
            assert folder_at(root).names() == [CheckpointName(2, 1, 5)]
            check(folder_at(root), [5])
    assert told == [20, 30]
    assert died == ended - 1 > 60


def test_these_power_cuts_find_what_is_not_flushed(tmp_path) -> None:
    """Without any fsync some of them cost a checkpoint that was told durable: else they would prove nothing."""
    root = tmp_path / "run" / "checkpoints"
    lost = 0
    for at in range(75, 140, 5):
        shutil.rmtree(root.parent, ignore_errors=True)
        root.mkdir(parents=True)
        told, was_killed = until_death(root, at, partial(unflushed, root), power=True)
        found = newest(folder_at(root)).checkpoint
        lost += was_killed and bool(told) and (found is None or found.manifest.step < max(told))
    assert lost


# ---------------------------------------------------------------------------------------------------- full, read-only


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """One megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user cannot mount a small file system: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))


def test_a_full_disk_is_told_and_costs_nothing(small_disk) -> None:
    folder = folder_at(small_disk)
    save(folder, named(10))
    fill(small_disk / "other")
    with pytest.raises(CheckpointError, match=r"cannot write .*No space left on device; make room there") as caught:
        save(folder, named(20))
    assert "\n" not in str(caught.value)
    check(folder, [10])
    assert not list(small_disk.rglob("*.tmp"))
    (small_disk / "other").unlink()
    save(folder, named(20))
    assert prune(folder, 1).kept == (named(20),)
    check(folder, [20])


def test_a_folder_that_cannot_be_written_is_told(small_disk) -> None:
    folder = folder_at(small_disk)
    save(folder, named(10))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(
        CheckpointError, match=r"cannot write .*Read-only file system; name a folder that can be written"
    ):
        save(folder, named(20))
    with pytest.raises(CheckpointError, match=r"cannot write .*Read-only"):
        save(folder_at(small_disk / "new"), named(20))
    check(folder, [10])


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"file.*is a symbolic link or no folder"):
        save(folder_at(tmp_path / "file"), named(10))


# ------------------------------------------------------------------------------------------------------- bad stores


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """One call in three fails, before it has done anything or after; a stream's too."""

    protocol = "failing"
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012 - as its base has it
    pseudo_dirs = [""]  # noqa: RUF012
    chance = random.Random(0)

    def maybe(self) -> None:
        if self.chance.random() < 1 / 6:
            raise TimeoutError("the store did not answer")

    def wrapped(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        self.maybe()
        result = getattr(MemoryFileSystem, name)(self, *arguments, **keywords)
        self.maybe()
        return result

    def info(self, path: str, **keywords: Any) -> Any:
        return self.wrapped("info", path, **keywords)

    def ls(self, path: str, detail: bool = True, **keywords: Any) -> Any:
        return self.wrapped("ls", path, detail, **keywords)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **keywords: Any) -> Any:
        return self.wrapped("cat_file", path, start, end, **keywords)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **keywords: Any) -> Any:
        return self.wrapped("pipe_file", path, value, mode, **keywords)

    def rm_file(self, path: str) -> Any:
        return self.wrapped("_rm", path)

    def makedirs(self, path: str, exist_ok: bool = False) -> Any:
        return self.wrapped("makedirs", path, exist_ok)

    def _open(self, path: str, mode: str = "rb", **keywords: Any) -> Any:
        self.maybe()
        stream = super()._open(path, mode, **keywords)
        write = stream.write

        def failing(chunk: bytes) -> int:
            self.maybe()
            return write(chunk[: len(chunk) // 2]) + write(chunk[len(chunk) // 2 :])

        stream.write = failing
        return stream


@pytest.fixture
def failing() -> Iterator[type[Failing]]:
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.store.clear()
    yield Failing
    Failing.store.clear()


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Or not, which is said in one line."""
    try:
        yield
    except CheckpointError as error:
        if not re.fullmatch(r"cannot .*: the store did not answer; look at that store", str(error)):
            raise


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_fails_in_one_call_of_three_loses_nothing_that_was_told_durable(failing, seed) -> None:
    failing.chance = random.Random(seed)
    pauses: list[float] = []
    folder = JobFolder(ObjectFiles("failing://bucket/checkpoints", wait=pauses.append), "mnist")
    told: list[int] = []
    for step in range(10, 130, 10):
        with answering():
            save(folder, named(step), parts=2)
            told.append(step)
            prune(folder, 2)
    assert pauses and told
    read = False
    while not read:  # until the store lets it be read
        with answering():
            check(folder, told)
            read = True


ONE_LINE = r"cannot (read|write|list|remove) s3://\S+: [^\n]+; look at that store"


@pytest.mark.soak  # a store that fails is above; one whose answers get lost: tests/contract/test_checkpoint_files.py
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(6))
def test_a_server_that_fails_in_one_request_of_three_loses_nothing_that_was_told_durable(seed, monkeypatch) -> None:
    """By S3's protocol: it answers 500 or cuts the connection, before it has done what was asked, or after."""
    with serving() as server, found_by_this_process(server, monkeypatch):
        pauses, told, failed = list[float](), list[int](), list[str]()
        folder = JobFolder(ObjectFiles(f"{server.bucket()}/checkpoints", wait=pauses.append), "mnist")
        server.answer = one_in_three(seed)
        for step in range(10, 70, 10):
            try:
                save(folder, named(step), parts=2)
                told.append(step)
                prune(folder, 2)
            except CheckpointError as error:
                failed.append(str(error))
        assert all(re.fullmatch(ONE_LINE, one) for one in failed), failed
        bad = sum(how != WELL for _, how in server.asked)
        assert len(server.asked) / 4 < bad < len(server.asked) / 2
        assert pauses and told
        server.answer = lambda asked: WELL
        check(folder, told)
        save(folder, named(70), parts=2)
        prune(folder, 1)  # with what failed savings have left
        assert folder.names() == [named(70)]


def test_what_a_store_has_lost_on_the_way_is_noticed(failing, monkeypatch) -> None:
    monkeypatch.setattr(Failing, "maybe", lambda self: None)
    real = Failing.info
    monkeypatch.setattr(Failing, "info", lambda self, path, **of: {**real(self, path, **of), "size": 5})
    folder = JobFolder(ObjectFiles("failing://bucket", wait=lambda pause_s: None), "mnist")
    with pytest.raises(CheckpointError, match=r"cannot write failing://.*: 5 of \d+ bytes have come there; look at"):
        save(folder, named(10))


def test_a_store_that_never_answers_is_given_up(failing, monkeypatch) -> None:
    monkeypatch.setattr(Failing, "maybe", lambda self: (_ for _ in ()).throw(ConnectionError("no route\nto it")))
    pauses: list[float] = []
    folder = JobFolder(ObjectFiles("failing://bucket", wait=pauses.append), "mnist")
    with pytest.raises(CheckpointError, match=r"cannot list failing://bucket/mnist/.*: no route; look at that store"):
        save(folder, named(10))
    assert sum(pauses) < 10


def test_a_store_that_refuses_is_not_asked_again(failing, monkeypatch) -> None:
    monkeypatch.setattr(Failing, "maybe", lambda self: (_ for _ in ()).throw(PermissionError("no such key")))
    folder = JobFolder(ObjectFiles("failing://bucket", wait=lambda pause_s: pytest.fail("it waited")), "mnist")
    with pytest.raises(CheckpointError, match="no such key"):
        newest(folder)
