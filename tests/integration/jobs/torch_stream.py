"""PyTorch on a packed stream. Each worker writes down which tokens it is about to train, then that it has: a verifier
that knows nothing of edl puts both together.
"""

import argparse
import importlib
import json
import os
import time
from pathlib import Path

import torch

import edl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--source", required=True, help="files of a corpus")
parser.add_argument("--loaders", type=int, default=0)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--step-time", type=float, default=0.05)
parser.add_argument("--slow-time", type=float, default=0.3, help="of a step as long as there is a file OUT/slow")
parser.add_argument("--shuffle", type=int, default=7)
parser.add_argument("--kind", default="jsonl", choices=["jsonl", "webdataset", "hf", "mixed"])
options = parser.parse_args()


def packed():
    """The stream that is trained: with "mixed", of two folders, nine items of the first to each of the second."""
    if options.kind != "mixed":
        return documents().shuffle(options.shuffle, seed=3).pack(options.length, pad=-1)
    web, code = (
        edl.ElasticStream(f"{options.source}/{name}/*").map(lambda record: record["tokens"]).pack(options.length)
        for name in ("web", "code")
    )
    return edl.ElasticStream.mix({"web": (web, 9), "code": (code, 1)})


def documents():
    """A stream of documents, each a list of tokens."""
    if options.kind == "hf":
        datasets = importlib.import_module("datasets")
        files = sorted(map(str, Path(options.source).parent.glob(Path(options.source).name)))
        return edl.ElasticStream(datasets.load_dataset("json", data_files=files, split="train", streaming=True)).map(
            lambda record: record["tokens"]
        )
    if options.kind == "webdataset":
        return edl.ElasticStream(options.source).map(lambda record: json.loads(record["json"])["tokens"])
    return edl.ElasticStream(options.source).map(lambda record: record["tokens"])


torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
edl.init()
origin = edl.resumed()
base, life = (0, 1) if origin is None else (origin.step, origin.life)
loader = edl.ElasticDataLoader(packed(), options.batch, epochs=options.epochs, num_workers=options.loaders)
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
(options.out / f"pid-{os.getpid()}").write_text(str(life))
with (options.out / f"life{life}-{os.getpid()}.jsonl").open("a") as log:
    for batch in loader:
        step, ring, own = edl.step(), edl.generation(), 0 if edl.rehearsing() else edl.own_samples()
        given = []
        time.sleep(options.slow_time if (options.out / "slow").exists() else options.step_time)
        optimizer.zero_grad()
        for tokens, share in edl.microbatches(batch):
            given += [item for item in tokens.tolist() if own and item not in given]
            line = {"life": life, "base": base, "step": step, "ring": ring, "rank": edl.rank(), "tokens": given}
            log.write(json.dumps(line) + "\n")
            log.flush()
            (model(tokens.float().mean(1, keepdim=True) / 1e6).square().mean() * share).backward()
        optimizer.step()
        if edl.notify_batch_end():
            log.write(json.dumps({"committed": step, "ring": ring, "life": life}) + "\n")
            log.flush()
weights = [one.item() for one in model.parameters()]
(options.out / f"weights-{os.getpid()}.json").write_text(json.dumps(weights))
