"""The port of checkpoints' files: a disk, and object stores by fsspec, in memory and by S3's protocol. One promise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from s3_store import DONE_BUT_500, DONE_BUT_DROPPED, DROPPED, PART_BYTES, WELL, S3Store, found_by_this_process, serving

from edl.checkpoints.checkpoint_storage import AlreadyThere, Files, NotThere
from edl.checkpoints.local_folders import LocalFiles
from edl.checkpoints.object_store import ObjectFiles
from edl.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Store]:
    with serving() as store:
        yield store


@pytest.fixture
def s3(s3_server, monkeypatch) -> Iterator[S3Store]:
    with found_by_this_process(s3_server, monkeypatch) as store:
        yield store


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.integration)])
def files(request, tmp_path) -> Iterator[Files]:
    if request.param == "local":
        yield LocalFiles(tmp_path / "deep" / "down")
        return
    if request.param == "s3":
        yield patient(request.getfixturevalue("s3"))
        return
    import fsspec

    url = f"memory://{tmp_path.name}"
    yield ObjectFiles(url, wait=lambda pause_s: None)
    fsspec.filesystem("memory").rm(tmp_path.name, recursive=True)


def patient(s3: S3Store) -> ObjectFiles:
    """A folder in a bucket of its own."""
    return ObjectFiles(f"{s3.bucket()}/deep/down", wait=lambda pause_s: None)


def read(files: Files, folder: str, name: str) -> bytes:
    with closing(files.open(folder, name)) as opened:
        return opened.read(0, opened.size)


def test_what_is_written_is_there(files) -> None:
    files.write("job/one", "a", lambda: iter([b"first ", b"", b"second"]))
    assert read(files, "job/one", "a") == b"first second"
    assert files.names("job") == ["one"]
    assert files.names("job/one") == ["a"]
    with closing(files.open("job/one", "a")) as opened:
        assert (opened.size, opened.read(6, 3), opened.read(9, 99), opened.read(12, 5)) == (12, b"sec", b"ond", b"")


def test_nothing_is_replaced(files) -> None:
    files.write("job/one", "a", lambda: [b"first"])
    with pytest.raises(AlreadyThere, match="is there already"):
        files.write("job/one", "a", lambda: [b"other"])
    files.create("job/one", "b", b"first")
    with pytest.raises(AlreadyThere, match="is there already"):
        files.create("job/one", "b", b"other")
    assert read(files, "job/one", "a") == read(files, "job/one", "b") == b"first"
    assert files.names("job/one") == ["a", "b"]


def test_what_is_not_there_is_gone(files) -> None:
    assert files.names("") == files.names("job") == []
    with pytest.raises(NotThere):
        files.open("job", "a")
    files.write("job", "b", lambda: [b""])
    assert read(files, "job", "b") == b""
    with pytest.raises(NotThere):
        files.open("job", "a")


def test_removing(files) -> None:
    files.write("job/one", "a", lambda: [b"x"])
    files.write("job/one", "b", lambda: [b"x"])
    files.remove("job/one", "a")
    files.remove("job/one", "a")  # again, as after a death
    assert files.names("job/one") == ["b"]
    assert not files.remove_folder("job/one")
    files.remove("job/one", "b")
    assert files.remove_folder("job/one")
    assert files.remove_folder("job/one")
    assert files.names("job") == []
    files.remove("job/one", "b")


def test_a_write_that_breaks_off_leaves_nothing_that_is_whole(files) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"first"
        raise RuntimeError("the worker's memory is gone")

    with pytest.raises(Exception, match="memory is gone"):
        files.write("job/one", "a", chunks)
    assert "a" not in files.names("job/one") or read(files, "job/one", "a") != b"first second"


def test_of_many_that_create_one_file_one_succeeds(tmp_path) -> None:
    """On a disk. A store's own promise is asked for; the one in memory makes none to threads."""
    for number in range(20):
        assert_one_winner(LocalFiles(tmp_path), f"round{number}")


def test_of_many_that_create_one_file_one_succeeds_also_without_hard_links(tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    for number in range(20):
        assert_one_winner(LocalFiles(tmp_path), f"round{number}")


@pytest.mark.integration
def test_of_many_that_create_one_object_one_succeeds(s3) -> None:
    """The store is asked for exclusive creation: what two writers found absent at once, one of them makes."""
    files = patient(s3)
    for number in range(5):
        assert_one_winner(files, f"round{number}")
    created = [asked for asked, _ in s3.asked if asked.startswith("PUT")]
    assert len(created) > 5, "no two of them were at it at once"
    assert all(asked.endswith("manifest.json? unless there") for asked in created)


@pytest.mark.integration
@pytest.mark.parametrize("badly", [DONE_BUT_500, DONE_BUT_DROPPED])
@pytest.mark.parametrize("attempts", ["1", "3"])
def test_a_creation_whose_answer_is_lost_is_its_own(s3, badly, attempts, monkeypatch) -> None:
    """Also where the store's library asks again by itself, and hears that the object is there."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", attempts)
    files, lost = patient(s3), list[str]()

    def answer(asked: str) -> str:
        if asked.startswith("PUT") and not lost:
            lost.append(asked)
            return badly
        return WELL

    s3.answer = answer
    files.create("job", "manifest.json", b"mine")
    assert lost and read(files, "job", "manifest.json") == b"mine"
    with pytest.raises(AlreadyThere):
        files.create("job", "manifest.json", b"another's")


@pytest.mark.integration
def test_what_is_large_is_sent_in_parts_and_is_there_when_all_of_them_are(s3) -> None:
    files, block = patient(s3), bytes(range(256)) * 4096
    seen: list[list[str]] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(2 * PART_BYTES // len(block) + 1):
            yield block
            seen.append(files.names("job"))

    files.write("job", "part", chunks)
    assert not any(seen)
    assert read(files, "job", "part") == block * len(seen)
    assert sum("partNumber=" in asked for asked, _ in s3.asked) >= 2


@pytest.mark.integration
def test_what_breaks_off_in_parts_leaves_none_of_them(s3) -> None:
    """Nobody sees them, and the store would ask for money for each."""
    files = patient(s3)

    def chunks() -> Iterator[bytes]:
        yield bytes(PART_BYTES + 1)
        raise RuntimeError("the worker's memory is gone")

    with pytest.raises(Exception, match="memory is gone"):
        files.write("job", "part", chunks)
    assert files.names("job") == []
    begun = sum(asked.startswith("POST") and asked.endswith("?uploads") for asked, _ in s3.asked)
    ended = sum(asked.startswith("DELETE") and "uploadId=" in asked for asked, _ in s3.asked)
    assert begun == ended > 0


@pytest.mark.integration
def test_a_bucket_that_is_not_there_is_named_and_not_made(s3) -> None:
    files = ObjectFiles("s3://mistyped/ck", wait=lambda pause_s: pytest.fail("it waited"))
    assert files.names("job") == []
    for write in (lambda: files.write("job", "part", lambda: [b"x"]), lambda: files.create("job", "part", b"x")):
        with pytest.raises(CheckpointError, match=r"cannot write s3://mistyped/ck/job/part: .*; make its bucket, or"):
            write()
    assert not any(asked.startswith("PUT /mistyped?") for asked, _ in s3.asked)


@pytest.mark.integration
def test_an_outage_is_tried_five_times_and_told_in_one_line(s3) -> None:
    """Not five times as often, as s3fs would by itself. HTTP's client asks once more where a connection has ended."""
    files, before = patient(s3), len(s3.asked)
    s3.answer = lambda asked: DROPPED
    with pytest.raises(CheckpointError, match=r"cannot list s3://[^\n]+; look at that store"):
        files.names("job")
    assert 5 <= len(s3.asked) - before <= 2 * 5


def assert_one_winner(files: Files, folder: str, writers: int = 6) -> None:
    start, won, lost = threading.Barrier(writers), list[bytes](), list[bytes]()

    def write(content: bytes) -> None:
        start.wait()
        try:
            files.create(folder, "manifest.json", content)
        except AlreadyThere:
            lost.append(content)
        else:
            won.append(content)

    threads = [threading.Thread(target=write, args=(b"leader %d" % number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(lost) == writers - 1
    assert read(files, folder, "manifest.json") == won[0]
    assert files.names(folder) == ["manifest.json"]


def test_a_store_is_asked_seldom(monkeypatch) -> None:
    """What lies behind each other comes with one request."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    files = ObjectFiles("memory://seldom")
    files.create("job", "part", bytes(range(200)))
    asked: list[str] = []
    real = MemoryFileSystem.cat_file
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda fs, path, **of: asked.append(path) or real(fs, path, **of))
    with closing(files.open("job", "part")) as opened:
        assert [opened.read(at, 3) for at in (10, 13, 0, 150, 198)] == [
            bytes(range(at, min(at + 3, 200))) for at in (10, 13, 0, 150, 198)
        ]
    assert len(asked) == 2
    fsspec.filesystem("memory").rm("seldom", recursive=True)


def test_a_store_that_is_not_known_is_named() -> None:
    with pytest.raises(ConfigError, match="nosuch://x: Protocol not known: nosuch"):
        ObjectFiles("nosuch://x")


def test_a_path_with_a_tilde_is_no_store(monkeypatch, tmp_path) -> None:
    from edl.checkpoints.checkpoint_paths import files_at

    monkeypatch.setenv("HOME", str(tmp_path))
    assert files_at("~/x").where == str(Path(tmp_path) / "x")
