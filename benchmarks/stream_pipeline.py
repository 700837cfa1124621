"""Tokens a second of a pipeline alone, on one core: documents read, made tokens of (their bytes) and packed to 512.

    taskset -c 0 python -m benchmarks.stream_pipeline [--keep stream-pipeline]

Beside edl's streams: `datasets`, WebDataset and MosaicML's streaming, as far as they are installed, each with the same
packing after it, which none of them has. Their records are the same, and the two of a pair take turns. Of each the
fastest round is told, as other work on the machine only takes time away; the ratio is the median of the rounds' own.
Nothing here needs a job: it is what a worker's reader does, with the checksum of each item.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import io
import json
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from edl.protocol.data_nouns import Mark
from edl.sources.streams.elastic_stream import ElasticStream
from edl.trainer.data.shard_feeds import ShardFeed

LENGTH = 512
Pipeline = Callable[[], Iterator[Any]]


def tokens_of(text: str | bytes) -> Any:
    return np.frombuffer(text if isinstance(text, bytes) else text.encode(), np.uint8)


def packed(documents: Iterable[Any]) -> Iterator[Any]:
    """Pack as a script of these libraries does."""
    held = np.empty(0, np.int64)
    for document in documents:
        held = np.concatenate([held, document])
        while len(held) >= LENGTH:
            yield held[:LENGTH]
            held = held[LENGTH:]


def write(folder: Path, documents: int) -> list[str]:
    chance = random.Random(1)
    texts = ["".join(chance.choices("etaoin shrdlu", k=chance.randint(100, 3000))) for _ in range(documents)]
    (folder / "0.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    if (parquet := _installed("pyarrow.parquet")) is not None:
        table = importlib.import_module("pyarrow").table({"text": texts})
        parquet.write_table(table, folder / "0.parquet", row_group_size=1000)
    with tarfile.open(folder / "0.tar", "w") as archive:
        for number, text in enumerate(texts):
            entry = tarfile.TarInfo(f"{number:07d}.txt")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return texts


def of_edl(stream: ElasticStream) -> Pipeline:
    def items() -> Iterator[Any]:
        feed = ShardFeed(stream.pack(LENGTH), 0, Mark(0, b""), {})
        while True:
            chunk = feed.read(256)
            yield from chunk.items
            if chunk.ended:
                return

    return items


class Pair(NamedTuple):
    """A library's pipeline, and edl's of the same records; "" where no library is installed that reads them."""

    library: str
    format: str
    theirs: Pipeline | None
    ours: Pipeline


def pairs(folder: Path, texts: list[str]) -> Iterator[Pair]:
    lines = of_edl(ElasticStream(folder / "0.jsonl").map(lambda record: tokens_of(record["text"])))
    if (datasets := _installed("datasets")) is None:
        yield Pair("", "JSON Lines", None, lines)
    else:
        for kind, name in (("json", "0.jsonl"), ("parquet", "0.parquet")):
            if not (folder / name).exists():
                continue
            data = {"data_files": str(folder / name), "cache_dir": str(folder / "cache")}
            streamed = datasets.load_dataset(kind, split="train", streaming=True, **data)
            theirs = functools.partial(_of_texts, streamed, "text")
            through = of_edl(ElasticStream(streamed).map(lambda record: tokens_of(record["text"])))
            yield Pair("datasets", f"{kind}, the dataset given to edl", theirs, through)
            own = of_edl(ElasticStream(folder / name).map(lambda record: tokens_of(record["text"])))
            yield Pair("datasets", f"{kind}, the files given to edl", theirs, own)
    tar = of_edl(ElasticStream(folder / "0.tar").map(lambda record: tokens_of(record["txt"])))
    if (webdataset := _installed("webdataset")) is None:
        yield Pair("", "tar", None, tar)
    else:
        made = webdataset.WebDataset(str(folder / "0.tar"), shardshuffle=False)
        yield Pair("WebDataset", "tar", functools.partial(_of_texts, made, "txt"), tar)
    if (streaming := _installed("streaming")) is not None:
        with streaming.MDSWriter(out=str(folder / "mds"), columns={"text": "str"}, size_limit=1 << 30) as writer:
            for text in texts:
                writer.write({"text": text})
        local = streaming.StreamingDataset(local=str(folder / "mds"), batch_size=1, shuffle=False)
        mds = of_edl(ElasticStream(str(folder / "mds"), format="mds").map(lambda record: tokens_of(record["text"])))
        yield Pair("Mosaic streaming", "MDS", functools.partial(_of_texts, local, "text"), mds)


def _of_texts(records: Iterable[Any], key: str) -> Iterator[Any]:
    return packed(tokens_of(record[key]) for record in records)


def _installed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def rate(pipeline: Pipeline) -> float:
    began, count = time.process_time(), sum(map(len, pipeline()))
    return count / (time.process_time() - began) / 1e6


def main() -> None:
    parser = harness.add_common(
        argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    )
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    figures = list[dict[str, object]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pair in pairs(folder, write(folder, options.documents)):
            ours, theirs = list[float](), list[float]()
            for _ in range(options.rounds):
                ours.append(rate(pair.ours))
                if pair.theirs is not None:
                    theirs.append(rate(pair.theirs))
            row: dict[str, object] = {
                "records": pair.format,
                "beside": pair.library,
                "edl, M tokens/s": round(max(ours), 1),
            }
            if theirs:
                ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
                row |= {"the other, M tokens/s": round(max(theirs), 1), "ratio": round(ratio, 2)}
            figures.append(row)
            print(json.dumps(row) if options.json else "  ".join(f"{name}: {value}" for name, value in row.items()))
    harness.keep(options.keep, figures)


if __name__ == "__main__":
    main()
