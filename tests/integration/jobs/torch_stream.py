"""PyTorch on a packed stream. Each worker writes down which tokens it is about to train, then that it has: a verifier
that knows nothing of edl puts both together.
"""

import argparse
import importlib
import json
import os
import signal
import time
from pathlib import Path

import torch

import edl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--source", required=True, help="files of a corpus; of endless ones, how many shards each has")
parser.add_argument("--loaders", type=int, default=0)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--step-time", type=float, default=0.05)
parser.add_argument("--slow-time", type=float, default=0.3, help="of a step as long as there is a file OUT/slow")
parser.add_argument("--shuffle", type=int, default=7)
parser.add_argument("--kind", default="jsonl", choices=["jsonl", "webdataset", "hf", "mixed", "endless"])
parser.add_argument("--until", type=int, default=0, help="the loop is left after this step of all lives")
parser.add_argument("--die", default="", help="MOMENT STEP: there one worker with samples is killed, as from outside")
options = parser.parse_args()


def die_at(moment, step, own):
    died = options.out / "died"
    if own and options.die == f"{moment} {step}" and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def packed():
    """The stream that is trained: with "mixed", of two folders, and with "endless", of shards that are only counted:
    nine items of the first to each of the second.
    """
    if options.kind == "mixed":
        both = [edl.ElasticStream(f"{options.source}/{name}/*") for name in ("web", "code")]
        web, code = (one.map(lambda record: record["tokens"]).pack(options.length) for one in both)
    elif options.kind == "endless":
        count = int(options.source)
        halves = [*range(count)], [*range(count, 2 * count)]
        web, code = (edl.ElasticStream(Endless, half, endless=True).pack(options.length) for half in halves)
    else:
        return documents().shuffle(options.shuffle, seed=3).pack(options.length, pad=-1)
    return edl.ElasticStream.mix({"web": (web, 9), "code": (code, 1)})


class Endless:
    """Documents of a shard without end: its tokens are all numbers from 100,000 times its own on."""

    def __init__(self, shard):
        self.begin, self.at = shard * 100_000, 0

    def __iter__(self):
        while True:
            first, self.at = self.at, self.at + 1 + self.at % 37
            yield list(range(self.begin + first, self.begin + self.at))

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state_dict):
        self.at = state_dict["at"]


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
epochs = None if options.kind == "endless" else options.epochs
loader = edl.ElasticDataLoader(packed(), options.batch, epochs=epochs, num_workers=options.loaders)
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
            die_at("begun", step, own)
            (model(tokens.float().mean(1, keepdim=True) / 1e6).square().mean() * share).backward()
        die_at("computed", step, own)
        optimizer.step()
        die_at("applied", step, own)
        if edl.notify_batch_end():
            log.write(json.dumps({"committed": step, "ring": ring, "life": life}) + "\n")
            log.flush()
            die_at("committed", step, own)
        if options.until and base + step >= options.until:
            break
weights = [one.item() for one in model.parameters()]
(options.out / f"weights-{os.getpid()}.json").write_text(json.dumps(weights))
