"""Each format, cut at random places: the records at some numbers are those of a naive reading of the whole."""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct
from pathlib import Path

import fsspec
import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edl.errors import DataError
from edl.sources import byte_records
from edl.sources.cache import Cache
from edl.sources.opening import open_files
from examples import examples

STORE = "memory://formats"
COMMON = settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Files of some hundred bytes then have many chunks, strides and spans."""
    monkeypatch.setattr(byte_records, "CHUNK", 11)
    monkeypatch.setattr(byte_records, "STRIDE", 16)
    monkeypatch.setattr(byte_records, "SPAN_BYTES", 64)


def opened(files: dict[str, bytes]):
    fs = fsspec.filesystem("memory")
    if fs.exists("/formats"):
        fs.rm("/formats", recursive=True)
    for name, content in files.items():
        fs.pipe(f"/formats/{name}", content)
    return open_files(STORE, None, Cache(Path("/nonexistent"), 5.0))


def everything(source) -> list:
    return source.read(range(len(source)))


def expect_records(source, expected: list, numbers: st.DataObject | None = None) -> None:
    assert len(source) == len(expected)
    assert everything(source) == expected
    if numbers is not None and expected:
        some = numbers.draw(st.lists(st.integers(0, len(expected) - 1), max_size=30))
        assert source.read(np.array(some, np.int64)) == [expected[number] for number in some]


pieces = st.lists(
    st.sampled_from(["a", "", "ä€😀", '"', ",", "\r", "\n", "\r\n", " ", "long " * 9, "\ufeff"]), max_size=40
)


# --------------------------------------------------------------------------------------------------------- lines


@COMMON
@given(st.lists(pieces.map("".join), min_size=1, max_size=3), st.data())
def test_text_is_split_at_newlines(texts, numbers):
    expected = []
    for text in texts:
        lines = text.removeprefix("\ufeff").split("\n")
        expected += [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
    if not any(texts):
        return
    expect_records(opened({f"{n}.txt": text.encode() for n, text in enumerate(texts)}), expected, numbers)


@pytest.mark.parametrize("content", [b"a\nb\n", b"a\nb", b"a\r\nb\r\n", b"\xef\xbb\xbfa\nb"])
def test_endings_of_lines_and_files_make_no_difference(content):
    expect_records(opened({"x.txt": content}), ["a", "b"])


def test_an_empty_line_of_text_is_a_record():
    expect_records(opened({"x.txt": b"\na\n\n\n"}), ["", "a", "", ""])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@COMMON
@given(st.lists(json_values, max_size=20), st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n"]), st.booleans(), st.data())
def test_json_lines_skip_blank_lines(values, newline, closed, numbers):
    content = newline.join(json.dumps(value, ensure_ascii=False) for value in values) + newline * closed
    expect_records(opened({"x.jsonl": content.encode(), "y.jsonl": b'{"last": 1}'}), [*values, {"last": 1}], numbers)


# ----------------------------------------------------------------------------------------------------------- CSV


fields = st.lists(st.sampled_from(["a", "", "ä", '"', ",", "\n", "\r\n", " "]), max_size=6).map("".join)


@COMMON
@given(
    st.lists(st.tuples(fields, fields), max_size=15),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.booleans(),
    st.data(),
)
def test_csv_is_what_the_csv_module_wrote(table, newline, quoting, closed, numbers):
    text = io.StringIO()
    csv.writer(text, lineterminator=newline, quoting=quoting).writerows([("x", "y"), *table])
    content = text.getvalue() if closed else text.getvalue().removesuffix(newline)
    source = opened({"x.csv": content.encode(), "y.csv": b"\xef\xbb\xbfx,y\nlast,\n"})
    expect_records(source, [*(dict(zip("xy", row, strict=True)) for row in table), {"x": "last", "y": ""}], numbers)


@COMMON
@given(st.lists(st.sampled_from(["a", '"', '""', ",", "\n", "\r\n", 'b"c', '"d\n"']), max_size=25).map("".join))
def test_csv_with_quotes_anywhere_is_what_the_csv_module_reads_or_an_error(text):
    try:
        expected = [row for row in csv.reader(io.StringIO("x\n" + text, newline=""), strict=True) if row][1:]
    except csv.Error:
        expected = None
    if expected is None or any(len(row) != 1 for row in expected):
        with pytest.raises(DataError, match=r"x\.csv on host .* is corrupt at byte \d+"):
            everything(opened({"x.csv": b"x\n" + text.encode()}))
    else:
        expect_records(opened({"x.csv": b"x\n" + text.encode()}), [{"x": row[0]} for row in expected])


def test_csv_without_rows_has_no_records():
    assert len(opened({"x.csv": b"x,y\n", "y.csv": b"", "z.csv": b"\n\nx,y"})) == 0


# ------------------------------------------------------------------------------------------------------ TFRecord


def tfrecord(*records: bytes) -> bytes:
    """Written down from the format's description: rotate right by 15, add a constant."""

    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    lengths = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(n + masked(n) + r + masked(r) for n, r in zip(lengths, records, strict=True))


def test_the_format_is_tensorflows():
    """Bytes that `tf.io.TFRecordWriter` wrote for b"hello" and b""."""
    written = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19000000000000000029039807d8ea82a2")
    assert tfrecord(b"hello", b"") == written
    expect_records(opened({"x.tfrecord": written}), [b"hello", b""])


@COMMON
@given(st.lists(st.binary(max_size=40), max_size=20), st.data())
def test_tfrecords_are_bytes(records, numbers):
    expect_records(
        opened({"x.tfrecord": tfrecord(*records), "y.tfrecord": tfrecord(b"last")}), [*records, b"last"], numbers
    )


# ------------------------------------------------------------------------------------------------------- Parquet


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 99), st.none() | st.text(max_size=5)), max_size=40), st.integers(1, 9), st.data()
)
def test_parquet_rows_are_dicts(table, group, numbers):
    expected = [{"n": n, "t": t, "nested": {"ns": [n, n]}} for n, t in table]
    schema = pa.schema([("n", pa.int64()), ("t", pa.string()), ("nested", pa.struct([("ns", pa.list_(pa.int64()))]))])
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(expected, schema), file, row_group_size=group)
    expect_records(opened({"x.parquet": file.getvalue(), "y.parquet": file.getvalue()}), expected * 2, numbers)


def test_parquet_groups_that_do_not_fit_into_memory_go_to_the_cache(tmp_path, monkeypatch):
    from edl.sources import parquet

    monkeypatch.setattr(parquet, "KEPT_BYTES", 1)
    expected = [{"n": n} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(expected), tmp_path / "x.parquet", row_group_size=10)
    source = open_files(tmp_path / "x.parquet", None, Cache(tmp_path / "cache", 5.0))
    for _ in range(3):
        assert source.read(range(0, 100, 7)) == expected[::7]
    assert len([*(tmp_path / "cache").glob("*.data")]) == 10
    monkeypatch.setattr(parquet.ParquetSource, "_decode", None)  # not needed any more, by no worker
    again = open_files(tmp_path / "x.parquet", None, Cache(tmp_path / "cache", 5.0))
    assert again.read(range(100)) == expected


# ---------------------------------------------------------------------------------------------------------- gzip


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.txt.gz", b"a\nb", ["a", "b"]),
        ("x.csv.gz", b"n\n1\n", [{"n": "1"}]),
        ("x.jsonl.gz", b"[1]\n", [[1]]),
        ("x.tfrecord.gz", tfrecord(b"r"), [b"r"]),
        ("empty.txt.gz", b"", []),
    ],
)
def test_packed_files_are_unpacked_once(tmp_path, name, content, expected):
    packed = gzip.compress(content[:1]) + gzip.compress(content[1:])  # several members are one file
    path = tmp_path / name
    path.write_bytes(packed)
    for _ in range(2):
        expect_records(open_files(path, None, Cache(tmp_path / "cache", 5.0)), expected)
    (kept,) = (tmp_path / "cache").glob("*.data")
    assert kept.read_bytes() == content
    assert kept.stat().st_mode & 0o077 == 0
