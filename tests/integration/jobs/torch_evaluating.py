"""A plain loop over epochs, each of a single step, and an evaluation after each: every switch is at an epoch's end."""

import json
import os
import sys
import time

import path
import task
import torch
from torch.nn import functional

path.parser.add_argument("--each", type=float, default=0.0, help="seconds that each batch of the evaluation takes")
path.parser.add_argument("--batch", type=int, default=128)
options = path.parser.parse_args([*sys.argv[1:], "--way", "evaluating"])

import edl.torch as edl  # noqa: E402

torch.set_num_threads(1)
edl.init()
torch.manual_seed(edl.rank())
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
shards = edl.elastic_shard_generator(task.SAMPLES, shuffle=True)
VALIDATED = 101
told = (options.out / f"evaluated-{os.getpid()}.jsonl").open("a")
batches: list[int] = []


def tell(**line):
    told.write(json.dumps(line) + "\n")
    told.flush()


def measure(ids):
    (options.out / f"evaluating-{os.getpid()}").touch()
    time.sleep(options.each)
    tell(batch=int(ids[0]), epoch=shards.epochs_done)
    with torch.no_grad():
        found = model(inputs[ids])
    loss = functional.mse_loss(found, targets[ids], reduction="sum")
    high = (found > 0).sum(dim=0)  # a vector: summed up element by element
    return {"loss": loss, "seen": len(ids), "high": high, "ids": edl.gather_for_metrics(torch.from_numpy(ids))}


while shards.epochs_done < path.epochs_wanted(options):
    for ids in shards.batches(options.batch):
        model.train(len(ids) > 1)  # batch norm knows no variance of one
        optimizer.zero_grad()
        functional.mse_loss(model(inputs[ids]), targets[ids]).backward()
        trained = edl.gather_for_metrics({"ids": ids, "twice": (2 * ids, ids)})
        optimizer.step()
        path.pause(options)
        if not edl.rehearsing() and edl.own_samples():
            tell(gathered=sorted(trained["ids"].tolist()), twice=int(trained["twice"][0].sum()), step=edl.step())
        edl.notify_batch_end()
    model.eval()
    found = edl.evaluate(measure, VALIDATED, batch_size=7)
    ids = found.pop("ids").tolist()
    figures = {
        "loss": found["loss"],
        "seen": found["seen"],
        "high": found["high"].tolist(),
        "in order": ids == [*range(VALIDATED)],
    }
    tell(epoch=shards.epochs_done, step=edl.step(), size=edl.size(), found=figures)
state = [*(value.detach().numpy() for value in model.state_dict().values())]
result = {"state": path.digest(state), "rank": edl.rank(), "step": edl.step(), "batches": 0, "pid": os.getpid()}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
