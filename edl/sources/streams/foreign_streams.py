"""Shards of streams that other packages read: Hugging Face's datasets, MosaicML's MDS, LitData's chunks.

None of these packages is needed for another source. Owns: which shards each of them has, and opening one.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edl.errors import ConfigError, UsageError

Shards = tuple[tuple[str, ...], Callable[[int], Any]]


def is_hugging_face(source: Any) -> bool:
    return hasattr(source, "num_shards") and hasattr(source, "shard") and hasattr(source, "load_state_dict")


def hugging_face(dataset: Any) -> Shards:
    """Return the shards of a `datasets.IterableDataset`. Raises UsageError for one that shuffles, as what it holds in
    its buffer is no part of its place, and for a rank's part of one: what other ranks have would be read by none.
    """
    if getattr(dataset, "_distributed", None) is not None:
        raise UsageError(
            "ElasticStream(dataset): split_dataset_by_node() has left a part of the dataset to each rank: leave it "
            "away, as edl shares out the shards"
        )
    if getattr(dataset, "_starting_state_dict", None) is not None:
        raise UsageError(
            "ElasticStream(dataset): load_state_dict() has moved the dataset: leave it away, as the job's checkpoints "
            "have its places (edl run --checkpoint)"
        )
    stages = [*_stages(getattr(dataset, "_ex_iterable", None))]
    for stage in stages:
        if "Shuffle" in type(stage).__name__:
            raise UsageError(
                "ElasticStream(dataset): dataset.shuffle() loses what is in its buffer where a shard is taken over: "
                "shuffle by ElasticStream(dataset).shuffle(buffer)"
            )
    count = int(dataset.num_shards)
    return _names(stages, count), functools.partial(_one_shard, dataset, count)


def _names(stages: Sequence[Any], count: int) -> tuple[str, ...]:
    """Return what the shards are called: as their files, or what a generator was given for each, where that is text."""
    given = getattr(stages[-1], "kwargs", {}).values() if stages else ()
    lists = (one for one in given if isinstance(one, list) and len(one) == count)
    named = next((one for one in lists if all(isinstance(name, str) for name in one)), None)
    return tuple(named or (f"shard {shard}" for shard in range(count)))


def _one_shard(dataset: Any, count: int, shard: int) -> Any:
    """Return a dataset of one shard which shares no place with another.

    A dataset holds its place in itself and in its stages: a copy by `copy.copy` has the same ones, and so have some
    parts that `shard` makes.
    """
    part = dataset if count == 1 else dataset.shard(num_shards=count, index=shard)
    own = object.__new__(type(part))
    own.__dict__ = {**vars(part), "_ex_iterable": _own_stage(part._ex_iterable)}
    return own


def _own_stage(stage: Any) -> Any:
    own = copy.copy(stage)
    for name, value in vars(stage).items():
        if _is_stage(value):
            setattr(own, name, _own_stage(value))
        elif isinstance(value, list) and any(map(_is_stage, value)):
            setattr(own, name, [_own_stage(one) for one in value])
    return own


def _is_stage(value: Any) -> bool:
    return hasattr(value, "_init_state_dict")


def has_rows_of_arrow(records: Any) -> bool:
    """Tell whether a dataset's records are the rows of Arrow's tables as they are, as those of `load_dataset`.

    Their places by the block are right from 5.1 on: before, records were lost where a table ends within a block.
    """
    if not is_hugging_face(records) or "Arrow" not in type(getattr(records, "_ex_iterable", None)).__name__:
        return False
    features = getattr(records, "features", None)
    is_plain = features and _is_plain(dict(features)) and getattr(records, "_formatting", records) is None
    version = importlib.import_module("datasets").__version__
    return bool(is_plain) and tuple(map(int, version.split(".")[:2])) >= (5, 1)


def _is_plain(feature: Any) -> bool:
    """Tell whether values are Arrow's own: no image, say, that is to be decoded."""
    if isinstance(feature, dict):
        return all(map(_is_plain, feature.values()))
    name = type(feature).__name__
    return name == "Value" or (name in ("List", "LargeList") and _is_plain(feature.feature))


class ArrowRows:
    """Records of a `datasets.IterableDataset`, made of Arrow's rows by the block, in a third of the time of one by one.

    It has a place after each `block` records.
    """

    def __init__(self, dataset: Any, block: int) -> None:
        self._tables, self._block = dataset.with_format("arrow"), block
        self.state_dict, self.load_state_dict = self._tables.state_dict, self._tables.load_state_dict

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for table in self._tables.iter(self._block):
            yield from table.to_pylist()


def node_of(source: Any) -> Any:
    """Return the node of torchdata.nodes that `source` is, or that it is a Loader of; None of anything else."""
    node = getattr(source, "root", source)  # a Loader begins anew at the place behind its last record
    return node if hasattr(node, "get_state") and hasattr(node, "reset") and hasattr(node, "__next__") else None


class NodeRecords:
    """Records that a node of torchdata.nodes gives, which is set to a place by reset()."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __iter__(self) -> Iterator[Any]:
        return iter(self._node)

    def state_dict(self) -> Any:
        return self._node.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self._node.reset(state_dict)


def _stages(stage: Any) -> Iterator[Any]:
    while stage is not None:
        yield stage
        stage = getattr(stage, "ex_iterable", None)


def mds(folders: Sequence[str]) -> Shards:
    """Return the shards of local folders that MosaicML's streaming has written."""
    reader_of = _needed("streaming.base.format", "mosaicml-streaming").reader_from_json
    readers = []
    for folder in folders:
        index = _index(folder)
        readers += [reader_of(folder, None, one) for one in index["shards"]]
    return tuple(f"{reader.basename if hasattr(reader, 'basename') else n}" for n, reader in enumerate(readers)), (
        lambda shard: MdsShard(readers[shard])
    )


class MdsShard:
    """The samples of an MDS file, by number."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return int(self._reader.size)

    def __getitem__(self, number: int) -> Any:
        return self._reader[number]


def litdata(folders: Sequence[str]) -> Shards:
    """Return the chunks of local folders that LitData has optimized."""
    package = _needed("litdata", "litdata")
    chunks: list[tuple[str, str, int, int]] = []
    for folder in folders:
        first = 0
        for one in _index(folder)["chunks"]:
            chunks.append((folder, str(one["filename"]), first, int(one["chunk_size"])))
            first += int(one["chunk_size"])
    datasets: dict[str, Any] = {}

    def opened(shard: int) -> LitDataChunk:
        folder, _, first, size = chunks[shard]
        if folder not in datasets:
            datasets[folder] = package.StreamingDataset(folder, shuffle=False)
        return LitDataChunk(datasets[folder], first, size)

    return tuple(f"{Path(folder).name} {name}" for folder, name, _, _ in chunks), opened


class LitDataChunk:
    """The items of a chunk, by number."""

    def __init__(self, dataset: Any, first: int, size: int) -> None:
        self._dataset, self._first, self._size = dataset, first, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> Any:
        return self._dataset[self._first + number]


def _index(folder: str) -> Any:
    path = Path(folder) / "index.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"ElasticStream(): there is no {path}: name the folder that the package has written") from None


def _needed(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"this format needs {package}, which is not installed: pip install {package}") from error
