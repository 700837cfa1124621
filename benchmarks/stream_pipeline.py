"""Tokens a second of a pipeline alone, on one core: documents read, made tokens of (their bytes) and packed to 512.

    taskset -c 0 python -m benchmarks.stream_pipeline

Beside edl's streams: `datasets`, WebDataset and MosaicML's streaming, as far as they are installed, each with the same
packing after it, which none of them has. Their records are the same; the best of so many rounds counts, which take
turns. Nothing here needs a job: it is what a worker's reader does, with the checksum of each item.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

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


def pipelines(folder: Path, texts: list[str]) -> dict[str, Pipeline]:
    lines = ElasticStream(folder / "0.jsonl").map(lambda record: tokens_of(record["text"]))
    tar = ElasticStream(folder / "0.tar").map(lambda record: tokens_of(record["txt"]))
    found = {"edl, JSON Lines": of_edl(lines), "edl, tar": of_edl(tar)}
    if (datasets := _installed("datasets")) is not None:
        streamed = datasets.load_dataset(
            "json", data_files=str(folder / "0.jsonl"), split="train", streaming=True, cache_dir=str(folder / "cache")
        )
        found["datasets, JSON Lines"] = lambda: packed(tokens_of(one["text"]) for one in streamed)
        found["edl, datasets"] = of_edl(ElasticStream(streamed).map(lambda record: tokens_of(record["text"])))
    if (webdataset := _installed("webdataset")) is not None:
        made = webdataset.WebDataset(str(folder / "0.tar"), shardshuffle=False)
        found["WebDataset, tar"] = lambda: packed(tokens_of(one["txt"]) for one in made)
    if (streaming := _installed("streaming")) is not None:
        with streaming.MDSWriter(out=str(folder / "mds"), columns={"text": "str"}, size_limit=1 << 30) as writer:
            for text in texts:
                writer.write({"text": text})
        local = streaming.StreamingDataset(local=str(folder / "mds"), batch_size=1, shuffle=False)
        found["Mosaic, MDS"] = lambda: packed(tokens_of(one["text"]) for one in local)
        mds = ElasticStream(str(folder / "mds"), format="mds").map(lambda record: tokens_of(record["text"]))
        found["edl, MDS"] = of_edl(mds)
    return found


def _installed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = pipelines(folder, write(folder, options.documents))
        best: dict[str, float] = {}
        for _ in range(options.rounds):
            for pipeline, items in made.items():
                began, count = time.process_time(), 0
                for item in items():
                    count += len(item)
                best[pipeline] = max(best.get(pipeline, 0.0), count / (time.process_time() - began))
        for pipeline, rate in best.items():
            print(f"{pipeline:24} {rate / 1e6:8.1f} million tokens/s")


if __name__ == "__main__":
    main()
