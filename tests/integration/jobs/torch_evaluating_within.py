"""A loop over a prepared loader that evaluates after the update of each other mini-batch."""

import json
import os
import signal
import sys

import path
import task
import torch
from torch.utils.data import DataLoader, TensorDataset

options = path.parser.parse_args([*sys.argv[1:], "--way", "evaluating"])

import edl.torch as edl  # noqa: E402

torch.set_num_threads(1)
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
dataset = TensorDataset(inputs, targets)
model, optimizer, loader = edl.prepare(model, optimizer, DataLoader(dataset, batch_size=16, shuffle=True))
counted = edl.register(updates=0)
VALIDATED = 21
victim = options.out / f"dies-{os.getpid()}"


def measure(ids):
    if victim.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    with torch.no_grad():
        return {"loss": torch.nn.functional.mse_loss(model(inputs[ids]), targets[ids]), "seen": len(ids)}


seen = set()
while loader.parts.loader.shards.epochs_done < path.epochs_wanted(options):
    for rows, wanted in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(rows), wanted).backward()
        before = model.weight.detach().clone()
        optimizer.step()
        counted.updates += not torch.equal(before, model.weight.detach())
        path.pause(options)
        if edl.step() % 2 == 0:
            seen.add(edl.evaluate(measure, VALIDATED, batch_size=2)["seen"])
assert seen == {VALIDATED}
state = [*(value.detach().numpy() for value in model.state_dict().values())]
result = {"state": path.digest(state), "rank": edl.rank(), "step": edl.step(), "batches": counted.updates}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
