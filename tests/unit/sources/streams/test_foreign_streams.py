"""`edl.sources.streams.foreign_streams`: datasets of Hugging Face's go on from each of their places."""

from __future__ import annotations

import importlib
import json
from typing import Any

import msgspec
import pytest

from edl.errors import UsageError
from edl.sources.streams import foreign_streams
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.stream_operators import Barrier

datasets: Any = pytest.importorskip("datasets")
RECORDS = 300


@pytest.fixture
def opened(tmp_path):
    """Return a streaming dataset of files whose tables end within blocks."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    rows = [{"number": number, "text": "a" * (number % 5)} for number in range(RECORDS)]
    parquet.write_table(table({name: [row[name] for row in rows] for name in rows[0]}), tmp_path / "0.parquet", 50)
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def load(kind: str) -> Any:
        name = {"json": "0.jsonl", "parquet": "0.parquet"}[kind]
        more = {"chunksize": 1500} if kind == "json" else {}
        files, cache = str(tmp_path / name), str(tmp_path / "cache")
        return datasets.load_dataset(kind, data_files=files, split="train", streaming=True, cache_dir=cache, **more)

    return load


def places_of(dataset: Any) -> tuple[list[Any], list[tuple[int, Any]]]:
    """Return all records, and how many come before each place, as a place comes to another worker."""
    records, places = list[Any](), list[tuple[int, Any]]()
    for one in ElasticStream(dataset).items(0):
        if type(one) is Barrier:
            places.append((len(records), msgspec.msgpack.decode(msgspec.msgpack.encode(one.parts), strict=False)))
        else:
            records.append(one)
    return records, places


def is_even(record: Any) -> bool:
    return bool(record["number"] % 2 == 0)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("parquet", lambda one: one),
        ("json", lambda one: one),
        ("parquet", lambda one: one.map(lambda record: {**record, "more": 1})),
        ("json", lambda one: one.filter(is_even)),
        ("parquet", lambda one: one.select_columns(["number"])),
        ("parquet", lambda one: one.skip(10).take(200)),
        ("json", lambda one: one.with_format("numpy")),
    ],
)
def test_a_dataset_goes_on_from_each_of_its_places(opened, kind, made):
    records, places = places_of(made(opened(kind)))
    assert records == [*made(opened(kind))]
    assert len(places) == len(records) // 64
    for count, place in places:
        rest = ElasticStream(made(opened(kind))).items(0, place)
        assert [one for one in rest if type(one) is not Barrier] == records[count:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        lambda one, _: one,
        lambda one, _: one.map(dict).filter(bool),
        lambda one, other: datasets.concatenate_datasets(
            [one, other.rename_columns({"number": "n", "text": "t"})], axis=1
        ),
        lambda one, other: datasets.interleave_datasets([one, other]),
        lambda one, _: datasets.concatenate_datasets([one, one]),
    ],
)
def test_readings_of_one_dataset_do_not_move_each_other(opened, monkeypatch, made):
    """As of two epochs, or of a shard that is opened again."""
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    dataset = made(opened("json"), opened("parquet"))
    shard, stream = dataset.num_shards - 1, ElasticStream(dataset)
    whole = [*stream.items(shard)]
    records = [one for one in whole if type(one) is not Barrier]
    at = next(number for number, one in enumerate(whole) if type(one) is Barrier)
    first, middle = stream.items(shard), stream.items(shard, whole[at].parts)
    assert [next(first) for _ in range(7)] == records[:7]
    assert next(middle) == records[at]
    last = stream.items(shard)
    places = [one.parts for one in whole if type(one) is Barrier]
    found = [*first]
    assert [one for one in found if type(one) is not Barrier] == records[7:]
    assert [one.parts for one in found if type(one) is Barrier] == places
    assert [one for one in middle if type(one) is not Barrier] == records[at + 1 :]
    assert [one for one in last if type(one) is not Barrier] == records


def test_a_dataset_that_was_moved_is_one_line(opened):
    dataset = opened("json")
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(UsageError, match="leave it away, as the job's checkpoints"):
        ElasticStream(dataset)


def test_two_datasets_in_turn_go_on_from_each_of_their_places(opened, monkeypatch):
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)  # of each reading: 5 s

    def made() -> Any:
        return datasets.interleave_datasets([opened("json"), opened("parquet")], probabilities=[0.7, 0.3], seed=1)

    records, places = places_of(made())
    assert records == [*made()]
    for count, place in places:
        rest = ElasticStream(made()).items(0, place)
        assert [one for one in rest if type(one) is not Barrier] == records[count:]


def test_rows_of_a_table_are_made_by_the_block_where_that_loses_none(opened, monkeypatch):
    def by_block(dataset: Any) -> bool:
        return foreign_streams.has_rows_of_arrow(dataset)

    assert by_block(opened("parquet"))
    assert not by_block(opened("parquet").map(lambda record: record))
    assert not by_block(opened("parquet").with_format("numpy"))
    monkeypatch.setattr(datasets, "__version__", "5.0.1")
    assert not by_block(opened("parquet"))


def test_a_dataset_that_shuffles_or_is_a_rank_s_part_is_one_line(opened):
    with pytest.raises(UsageError, match=r"shuffle by ElasticStream\(dataset\).shuffle"):
        ElasticStream(opened("parquet").shuffle(seed=1))
    split = importlib.import_module("datasets.distributed").split_dataset_by_node
    for size in (1, 2):
        with pytest.raises(UsageError, match="leave it away, as edl shares out the shards"):
            ElasticStream(split(opened("json"), rank=0, world_size=size).map(dict))


def test_shards_are_called_as_their_files_and_workers_with_other_files_are_told_apart(opened):
    stream = ElasticStream(opened("json").map(dict).filter(bool))
    assert [name.rpartition("/")[2] for name in stream.names] == ["0.jsonl"]
    assert stream.fingerprint == ElasticStream(opened("json")).fingerprint
    assert stream.fingerprint != ElasticStream(opened("parquet")).fingerprint
    parts = {"part": ["a", "b"], "seed": 1}
    made = datasets.IterableDataset.from_generator(lambda part, seed: iter(({"a": 1},)), gen_kwargs=parts)
    assert ElasticStream(made).names == ("a", "b")
    assert ElasticStream(datasets.interleave_datasets([made, made])).names == ("shard 0", "shard 1")
