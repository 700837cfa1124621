"""`edl.sources.streams`: files that are shards, from any of their places on, and what is wrong with them."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from edl.errors import ConfigError, DataError, UsageError
from edl.sources.streams import elastic_stream
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.stream_operators import Barrier

RECORDS: list[dict[str, Any]] = [{"n": number, "text": "ü" * (number % 7)} for number in range(41)]


def jsonl() -> bytes:
    return b"\n".join(json.dumps(one).encode() + (b"\n" if one["n"] % 5 == 0 else b"") for one in RECORDS)


def archive() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for one in RECORDS:
            for ending, content in (("json", json.dumps(one).encode()), ("txt", one["text"].encode())):
                entry = tarfile.TarInfo(f"folder/{one['n']:05d}.{ending}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def plain(record: Any) -> Any:
    """Return what was written, of any format."""
    if isinstance(record, dict) and "__key__" in record:
        found = json.loads(record["json"])
        assert record["__key__"] == f"folder/{found['n']:05d}"
        assert record["txt"].decode() == found["text"]
        return found
    return json.loads(record) if isinstance(record, str) else record


def written(folder: Path, kind: str) -> Path:
    path = folder / f"0.{kind}"
    if kind == "jsonl":
        path.write_bytes(jsonl())
    elif kind == "txt":
        path.write_text("".join(json.dumps(one) + "\r\n" for one in RECORDS))
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(jsonl()[:500]) + gzip.compress(jsonl()[500:]))
    elif kind == "jsonl.zst":
        zstandard = pytest.importorskip("zstandard")
        pack = zstandard.ZstdCompressor().compress
        path.write_bytes(pack(jsonl()[:500]) + pack(jsonl()[500:]))
    elif kind == "tar":
        path.write_bytes(archive())
    elif kind == "tar.gz":
        path.write_bytes(gzip.compress(archive()))
    elif kind == "parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pytest.importorskip("pyarrow").Table.from_pylist(RECORDS), path, row_group_size=9)
    else:
        pa = pytest.importorskip("pyarrow")
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, pa.Table.from_pylist(RECORDS).schema) as writer:
            writer.write_table(pa.Table.from_pylist(RECORDS), max_chunksize=9)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "txt", "jsonl.gz", "jsonl.zst", "tar", "tar.gz", "parquet", "arrow"])
def test_a_file_goes_on_from_each_of_its_places(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(elastic_stream, "BLOCK", 1)
    stream = ElasticStream(written(tmp_path, kind))
    flow = [*stream.items(0)]
    assert [plain(one) for one in flow if type(one) is not Barrier] == RECORDS
    places = [one.parts for one in flow if type(one) is Barrier]
    assert len(places) == len(RECORDS) - 1  # none behind the last record
    for number, place in enumerate(places, 1):
        rest = [*stream.items(0, place)]
        assert [plain(one) for one in rest if type(one) is not Barrier] == RECORDS[number:]
        assert [one.parts for one in rest if type(one) is Barrier] == places[number:]


def test_files_of_another_file_system(tmp_path):
    import fsspec

    with fsspec.open("memory://streams/0.jsonl", "wb") as out:
        out.write(jsonl())
    stream = ElasticStream("memory://streams/*.jsonl")
    place = next(one for one in _every(stream, 5) if type(one) is Barrier).parts
    assert [*stream] == RECORDS
    assert [one for one in stream.items(0, place) if type(one) is not Barrier] == RECORDS[5:]


def _every(stream: ElasticStream, block: int) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elastic_stream, "BLOCK", block)
        return [*stream.items(0)]


def test_a_place_far_into_a_large_file_is_there_at_once(tmp_path):
    path = tmp_path / "0.jsonl"
    with path.open("wb") as out:
        out.truncate(2 << 30)
        out.seek(2 << 30)
        out.write(b"\n" + jsonl())
    began = time.process_time()
    found = [one for one in ElasticStream(path).items(0, ((2 << 30) + 1,)) if type(one) is not Barrier]
    assert found == RECORDS
    assert time.process_time() - began < 1.0


WRONG = [
    ("0.jsonl", lambda data: data[:-3], "is corrupt at byte .*it is no JSON"),
    ("0.jsonl.gz", lambda data: gzip.compress(data)[:-20], "is corrupt at about byte .*end-of-stream marker"),
    ("0.tar", lambda _: archive()[:-15000], "is corrupt at about byte .*unexpected end of data"),
    ("0.txt", lambda data: data[:50] + b"\xff" + data[50:], "is corrupt at byte .*it is no UTF-8"),
]


@pytest.mark.parametrize(("name", "spoil", "told"), WRONG)
def test_what_is_wrong_with_a_file_is_told_with_its_place(tmp_path, name, spoil, told):
    (tmp_path / name).write_bytes(spoil(jsonl()))
    with pytest.raises(DataError, match=f"{re.escape(str(tmp_path / name))} on host .* {told}"):
        [*ElasticStream(tmp_path / name)]


def test_a_cut_off_zst_file_is_told(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "0.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(jsonl())[:-9])
    with pytest.raises(DataError, match="ends in the middle of what is packed"):
        [*ElasticStream(tmp_path / "0.jsonl.zst")]


def test_a_file_that_shrank_is_told(tmp_path):
    stream = ElasticStream(written(tmp_path, "jsonl"))
    (tmp_path / "0.jsonl").write_bytes(jsonl()[: jsonl().index(b"\n") + 1])
    with pytest.raises(DataError, match="has shrunk: it ends at byte"):
        list(stream)


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_a_record_that_is_too_large_is_told(tmp_path, kind):
    path = written(tmp_path, kind)
    with pytest.raises(DataError, match=r"has a record at byte \d+ that is larger than 20 bytes.*largest_record="):
        [*ElasticStream(path, largest_record=20)]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: ElasticStream(path / "none.jsonl"), "there is no file"),
        (lambda path: ElasticStream([path / "a.jsonl", path / "b.txt"]), "a stream has one format"),
        (lambda path: ElasticStream(path / "c.bin"), "does not say which format it has: say format="),
        (lambda path: ElasticStream(path / "a.jsonl", format="xml"), "it must be one of text, jsonl, webdataset"),
        (lambda path: ElasticStream(path / "a.jsonl", 3), "each file is a shard, so leave shards= away"),
        (lambda path: ElasticStream(path / "d.parquet.gz"), "is packed inside"),
        (lambda path: [*ElasticStream(str(path), format="mds")], "there is no .*index.json|needs mosaicml-streaming"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, make, told):
    for name in ("a.jsonl", "b.txt", "c.bin", "d.parquet.gz"):
        (tmp_path / name).write_bytes(b"{}\n")
    with pytest.raises((UsageError, ConfigError), match=told) as error:
        [*make(tmp_path)]
    assert "\n" not in str(error.value)
