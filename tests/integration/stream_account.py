"""An account of what jobs on streams have trained, from what their scripts wrote down. It shares no code with edl.

A step of a ring counts where some worker has written that it is committed, and, of a life that another one went on
from, where it is not beyond that. What a worker was about to train in it counts then, whether that worker lived on to
write it or not.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

SEPARATED = 100_000  # tokens of one shard begin so far from those of the shard before


def write_corpus(
    folder: Path, shards: int, documents: int, longest: int, kind: str = "jsonl", seed: int = 1, exactly: int = 0
) -> int:
    """Write shards of documents whose tokens are all different; return how many there are. `exactly`: so many tokens in
    each shard, in as many documents as that takes.
    """
    folder.mkdir(parents=True)
    chance, total = random.Random(seed), 0
    for shard in range(shards):
        begin = token = SEPARATED * (seed * shards + shard)
        records = list[dict[str, list[int]]]()
        for _ in range(exactly or chance.randint(documents // 2, documents + documents // 2)):
            count = chance.randint(1, longest)
            if exactly:
                count = min(count, begin + exactly - token)
            records.append({"tokens": list(range(token, token + count))})
            token, total = token + count, total + count
            if token - begin == exactly:
                break
        assert token < begin + SEPARATED
        if kind == "webdataset":
            with tarfile.open(folder / f"{shard:03d}.tar", "w") as archive:
                for number, record in enumerate(records):
                    content = json.dumps(record).encode()
                    entry = tarfile.TarInfo(f"{number:06d}.json")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
        else:
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (folder / f"{shard:03d}.jsonl").write_text(lines)
    return total


def tokens_of(folder: Path) -> set[int]:
    """Return all tokens of a corpus, read by plain Python."""
    found: set[int] = set()
    for path in sorted(folder.iterdir()):
        if path.suffix == ".tar":
            with tarfile.open(path) as archive:
                contents = [archive.extractfile(one) for one in archive.getmembers()]
                records = [json.loads(content.read()) for content in contents if content is not None]
        else:
            records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            found.update(record["tokens"])
    return found


def trained(out: Path) -> Counter[int]:
    """Return how often each token was trained in a committed step, over all lives."""
    return Counter(token for items in steps_of(out) for item in items for token in item if token >= 0)


def steps_of(out: Path) -> list[list[list[int]]]:
    """Return the items of each committed step, in order and by rank, over all lives."""
    given: dict[tuple[int, int, int], dict[str, tuple[int, list[list[int]]]]] = defaultdict(dict)
    committed, bases = set(), {}
    for path in out.glob("life*.jsonl"):
        for text in path.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # the last one of a worker that was killed as it wrote
                continue
            if "committed" in line:
                committed.add((line["life"], line["ring"], line["committed"]))
            else:
                given[line["life"], line["ring"], line["step"]][path.name] = line["rank"], line["tokens"]
                bases[line["life"]] = line["base"]
    lives = sorted(bases)
    ends = {life: bases[after] - bases[life] for life, after in pairwise(lives)}
    found: list[list[list[int]]] = []
    rings: dict[tuple[int, int], int] = {}
    for life, step, ring in sorted((life, step, ring) for life, ring, step in committed):
        if life in ends and step > ends[life]:
            continue
        assert rings.setdefault((life, step), ring) == ring, f"step {step} of life {life} is committed in two rings"
        found.append([item for _, items in sorted(given[life, ring, step].values()) for item in items])
    return found
