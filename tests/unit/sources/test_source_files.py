"""Which files a source has, what is found out about them once per host, and each way in which they may be bad."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import threading
import time
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl.errors import DataError, UsageError
from edl.sources import byte_records, opening, record_places
from edl.sources.__main__ import main
from edl.sources.cache import Cache
from edl.sources.listing import list_files
from edl.sources.opening import open_files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "LITTLE_BYTES", 0)  # all is worth the cache
    (tmp_path / "d").mkdir()
    return tmp_path / "d"


def opened(source, given=None):
    where = Path(source[0] if isinstance(source, list) else source)
    return open_files(source, given, Cache(next(p for p in where.parents if p.name == "d").parent / "cache", 1.0))


def everything(source) -> list:
    return source.read(range(len(source)))


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --------------------------------------------------------------------------------------------------- which files


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_paths_globs_folders_and_urls(folder, scheme):
    for name in ("b.txt", "a.txt", "sub/c.txt", "_SUCCESS", ".hidden.txt", "sub/_temporary/d.txt"):
        write(folder / name, name)
    root = f"{scheme}{folder}"
    files = [f"{root}/b.txt", f"{root}/a.txt"]
    assert everything(open_files(files, None, Cache(folder.parent / "cache", 1.0))) == ["b.txt", "a.txt"]
    for source, expected in {
        root: ["a.txt", "b.txt", "sub/c.txt"],
        f"{root}/": ["a.txt", "b.txt", "sub/c.txt"],
        f"{root}/*.txt": ["a.txt", "b.txt"],
        f"{root}/s*": ["sub/c.txt"],
        f"{root}/**/*.txt": ["a.txt", "b.txt", "sub/c.txt"],
        f"{root}/.h*": [".hidden.txt"],
    }.items():
        names = [file.name for file in list_files([source])]
        assert names == [f"{folder}/{name}" for name in expected], source


def test_files_in_memory_have_urls_as_names():
    fsspec.filesystem("memory").pipe("/listing/x.txt", b"one\ntwo")
    (file,) = list_files(["memory://listing/*"])
    assert (file.name, file.size, file.is_local) == ("memory:///listing/x.txt", 7, False)
    assert everything(open_files("memory://listing/x.txt", None, Cache(Path("/nonexistent"), 1.0))) == ["one", "two"]


def test_a_name_with_brackets_is_a_file_before_it_is_a_glob(folder):
    write(folder / "a[1].txt", "x")
    assert len(list_files([str(folder / "a[1].txt")])) == 1


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        ([], None, "there is no file"),
        (["x"], None, "does not say which format.*format=.*text, csv, jsonl, tfrecord, parquet"),
        (["x.jpg"], None, "does not say which format"),
        (["x.parquet.gz"], None, "does not say which format"),
        (["a.csv", "b.txt"], None, "a.csv is csv and .*b.txt is text: a source has one format"),
        (["a.csv"], "xml", "format='xml'.*must be one of text, csv"),
    ],
)
def test_files_that_make_no_source_are_told_of(folder, names, given, message):
    for name in names:
        write(folder / name, "a\nb\n")
    with pytest.raises(UsageError, match=message):
        open_files(str(folder if names else folder / "*.txt"), given, Cache(folder / "none", 1.0))


def test_an_unknown_file_system_is_told_of():
    for source, message in {"foo://bar/x.txt": "foo", "oss://bucket/x.txt": "ossfs"}.items():
        with pytest.raises(UsageError, match=message):
            list_files([source])


def test_a_file_named_twice_is_told_of(folder):
    path = str(write(folder / "a.txt", "x"))
    with pytest.raises(UsageError, match=r"names .*a\.txt twice"):
        opened([path, str(folder / "*.txt")])


@pytest.mark.parametrize("name", ["x.NDJSON", "x.jsonl", "x.jsonl.gz", "train.jsonl-00001-of-00010", "a.b.jsonl"])
def test_the_format_follows_from_the_name(folder, name):
    content = b'{"a": 1}\n'
    write(folder / name, gzip.compress(content) if name.endswith("gz") else content)
    assert everything(opened(folder / name)) == [{"a": 1}]


def test_the_fingerprint_is_that_of_the_data_and_not_of_its_place(folder):
    def fingerprint(place: str, *contents: str) -> str:
        for number, content in enumerate(contents):
            write(folder / place / f"{number}.txt", content)
        return opened(folder / place).fingerprint

    first = fingerprint("p", "a", "bc")
    assert fingerprint("q", "d", "ef") == first
    assert first.startswith("text:2:")
    assert len({first, fingerprint("r", "a", "b"), fingerprint("s", "a", "bc", "")}) == 3


# ----------------------------------------------------------------------------------------------------- the cache


def test_records_are_counted_once_per_host(folder, monkeypatch):
    path = write(folder / "a.txt", "".join(f"{n}\n" for n in range(9999)))
    assert len(opened(path)) == 9999
    (kept,) = (folder.parent / "cache").glob("*.npy")
    assert kept.stat().st_mode & 0o077 == kept.parent.stat().st_mode & 0o077 == 0
    with monkeypatch.context() as patch:
        patch.setattr(opening, "scan", None)
        assert opened(path).read([77, 9998, 77]) == ["77", "9998", "77"]
    path.write_text("changed\n")
    assert everything(opened(path)) == ["changed"]


@pytest.mark.parametrize(
    "damage", [lambda kept: kept[: len(kept) // 2], lambda kept: b"", lambda kept: b"x" * len(kept)]
)
def test_a_damaged_entry_is_made_again(folder, damage):
    path = write(folder / "a.txt", "a\nb\n")
    opened(path)
    (kept,) = (folder.parent / "cache").glob("*.npy")
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert everything(opened(path)) == ["a", "b"]
    assert kept.read_bytes() == whole


def test_where_nothing_can_be_kept_records_are_counted_all_the_same(folder, caplog):
    write(folder.parent / "cache", "a file in the place of the folder")
    assert len(opened(write(folder / "a.txt", "a\nb\n"))) == 2
    assert "cannot keep" in caplog.text
    with pytest.raises(DataError, match=r"a\.txt\.gz.* cannot be unpacked into .*EDL_HOME"):
        opened(write(folder / "a.txt.gz", gzip.compress(b"a")))


def test_one_process_counts_and_the_others_wait(folder, monkeypatch):
    counted = []

    def slow(*arguments):
        counted.append(1)
        time.sleep(0.2)
        return byte_records.scan(*arguments)

    monkeypatch.setattr(opening, "scan", slow)
    path = write(folder / "a.txt", "a\nb\n")
    threads = [threading.Thread(target=opened, args=(path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 1


def test_a_process_that_waits_too_long_counts_for_itself(folder, caplog):
    path = write(folder / "a.txt", "a\nb\n")
    opened(path)
    (kept,) = (folder.parent / "cache").glob("*.npy")
    kept.unlink()
    with kept.with_suffix(".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert len(opened(path)) == 2
    assert "doing it here too" in caplog.text
    assert not kept.exists()


def test_what_is_not_used_is_forgotten(folder):
    opened(write(folder / "a.txt", "a"))
    old = {*(folder.parent / "cache").glob("*.npy")}
    for path in (folder.parent / "cache").iterdir():
        os.utime(path, (0, 0))
    opened(write(folder / "b.txt", "b"))
    assert len([*(folder.parent / "cache").glob("*.npy")]) == 1
    assert not old & {*(folder.parent / "cache").glob("*.npy")}


def test_the_table_is_small(folder):
    path = write(folder / "a.txt", "x\n" * 500_000)
    opened(path)
    (kept,) = (folder.parent / "cache").glob("*.npy")
    assert kept.stat().st_size < 0.004 * path.stat().st_size
    assert record_places.STRIDE == 8192


# ------------------------------------------------------------------------------------------------------ bad files


LINES = "".join(f"line {n}\n" for n in range(5000))
GONE, SHRUNK, CHANGED = "is gone", r"has shrunk: it ends at byte \d+ and had \d+ bytes", "has changed at bytes? "


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(
        pa.table({"n": list(range(5000))}), file, row_group_size=1000, compression="none", use_dictionary=False
    )
    return file.getvalue()


CONTENTS = {"x.txt": LINES.encode(), "x.parquet": parquet(), "x.txt.gz": gzip.compress(LINES.encode())}


@pytest.mark.parametrize("name", ["x.txt", "x.parquet"])
def test_a_file_that_vanishes(folder, name):
    path = write(folder / name, CONTENTS[name])
    source = opened(path)
    path.unlink()
    with pytest.raises(DataError, match=rf"{path} on host .* {GONE} \(it was wanted at (byte|row group) \d+"):
        source.read([4000])


@pytest.mark.parametrize("name", ["x.txt", "x.parquet"])
def test_a_file_that_shrinks(folder, name):
    path = write(folder / name, CONTENTS[name])
    source = opened(path)
    path.write_bytes(CONTENTS[name][:1000])
    with pytest.raises(DataError, match=SHRUNK):
        source.read([4000])


def test_a_file_that_vanishes_or_shrinks_elsewhere():
    fs = fsspec.filesystem("memory")
    fs.pipe("/faults/x.txt", LINES.encode())
    source = open_files("memory://faults/x.txt", None, Cache(Path("/nonexistent"), 1.0))
    assert source.read([4000]) == ["line 4000"]
    fs.pipe("/faults/x.txt", b"line")
    with pytest.raises(DataError, match=SHRUNK):
        source.read([4000])
    fs.rm("/faults/x.txt")
    with pytest.raises(DataError, match=f"memory:///faults/x.txt on host .* {GONE}"):
        source.read([4000])


def test_a_file_that_is_overwritten(folder):
    path = write(folder / "x.txt", LINES)
    source = opened(path)
    path.write_text(LINES.replace("\n", " ", 1))
    with pytest.raises(DataError, match=CHANGED):
        source.read([3])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder):
    path = write(folder / "x.txt", LINES)
    path.chmod(0)
    with pytest.raises(DataError, match="may not be read by this user"):
        opened(path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(5, "Input/output error"), r"cannot be read at byte \d+: .*Input/output error"),
        (PermissionError(13, "Permission denied"), r"may not be read by this user \(at byte \d+\)"),
    ],
)
def test_a_file_that_cannot_be_read_any_more(folder, monkeypatch, error, message):
    path = write(folder / "x.txt", LINES)
    source = opened(path)

    def broken(*_: object) -> bytes:
        raise error

    monkeypatch.setattr("os.pread", broken)
    with pytest.raises(DataError, match=rf"x\.txt on host .* {message}"):
        source.read([3])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"fine\n\xff\xfe\n", r"corrupt at byte 5 \(sample 1\): byte 0 of the record is no UTF-8"),
        ("x.jsonl", b'{"a": 1}\n{"a": \n', r"corrupt at byte 9 \(sample 1\): no JSON: Expecting value"),
        ("x.csv", b"a,b\n1,2\n3\n", r"corrupt at byte 8 \(sample 1\): the row has 1 fields and the header 2"),
        ("x.csv", b'a\n1\n"2\n3\n', "corrupt at byte 4: no CSV: a quote is opened and never closed"),
        ("x.csv", b'a\n1\n"2"3\n', "corrupt at byte 4: no CSV"),
        ("x.csv", b"a,a\n1,2\n", "corrupt at byte 0: the header names the column 'a' twice"),
        ("x.tfrecord", b"no TFRecord at all", "corrupt at byte 0: the checksum of the record's length is wrong"),
        ("x.parquet", b"no Parquet at all", "corrupt at the footer"),
        ("x.parquet", b"", "corrupt at the footer"),
        ("x.txt.gz", b"no gzip at all", "corrupt at byte 0 of what is packed in it: no gzip"),
        ("x.txt.gz", CONTENTS["x.txt.gz"][:-100], r"corrupt at byte \d+ of what is packed in it: no gzip"),
    ],
)
def test_a_corrupt_file(folder, name, content, message):
    with pytest.raises(DataError, match=rf"{name}.* on host .* is {message}.*mend the file, or leave it out"):
        everything(opened(write(folder / name, content)))


def test_a_corrupt_row_group(folder):
    content = bytearray(CONTENTS["x.parquet"])
    content[4:40] = b"\xff" * 36
    source = opened(write(folder / "x.parquet", bytes(content)))
    assert source.read([4999]) == [{"n": 4999}]
    with pytest.raises(DataError, match=r"x\.parquet on host .* corrupt at row group 0"):
        source.read([0])


@pytest.mark.parametrize("cut", [1, 5, 15, 20])
def test_a_tfrecord_file_that_is_cut_off(folder, cut):
    record = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19")
    path = write(folder / "x.tfrecord", record * 3 + record[:cut])
    with pytest.raises(DataError, match="corrupt at byte 63: the file ends in the middle of a record"):
        opened(path)


def test_a_tfrecord_whose_data_is_wrong(folder):
    record = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19")
    source = opened(write(folder / "x.tfrecord", record + record.replace(b"hello", b"jello")))
    assert source.read([0]) == [b"hello"]
    with pytest.raises(DataError, match=r"corrupt at byte 21 \(sample 1\): the checksum of the record's data is wrong"):
        source.read([1])


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_files_with_different_columns(folder, name):
    for number, column in enumerate("ab"):
        table = pa.table({column: ["1"]})
        if name == "parquet":
            pq.write_table(table, folder / f"{number}.parquet")
        else:
            write(folder / f"{number}.csv", f"{column}\n1\n")
    with pytest.raises(
        DataError, match=rf"1\.{name} on host .* has the columns \('b',\), but .*0\.{name} has \('a',\)"
    ):
        opened(folder / f"*.{name}")


# ------------------------------------------------------------------------------------------- counting beforehand


def test_files_may_be_counted_before_a_job(folder, monkeypatch, capsys):
    monkeypatch.setenv("EDL_HOME", str(folder.parent / "home"))
    write(folder / "a.txt", "a\nb\n")
    write(folder / "b.txt", b"\xff\n")
    assert main([f"{folder}/*.txt"]) == 0
    assert capsys.readouterr().out.startswith("3 records counted in ")
    assert len([*(folder.parent / "home" / "data").glob("*.npy")]) == 1
    assert main([f"{folder}/*.txt", "--check"]) == 1
    assert capsys.readouterr().err.startswith(f"edl: {folder}/b.txt on host ")
    assert main([f"{folder}/a.txt", "--check", "--format", "text"]) == 0
    assert "2 records counted and read" in capsys.readouterr().out
    assert main([f"{folder}/*.csv"]) == 2


def test_people_hear_of_what_takes_long(folder, monkeypatch, caplog):
    monkeypatch.setattr(opening, "LARGE_BYTES", 1)
    path = write(folder / "a.txt", "a\nb\n")
    for _ in range(2):
        opened(path)
    assert caplog.text.count("counting the records of 1 files (0.0 GB), once for this host") == 1
