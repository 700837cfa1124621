"""PyTorch on files: each record of each epoch is written down once it is trained."""

import json
import sys
from pathlib import Path

import torch

import edl.torch as edl

source, out = sys.argv[1], Path(sys.argv[2])
torch.set_num_threads(1)
edl.init()
model = torch.nn.Linear(2, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
trained = []
for records in edl.elastic_shard_generator(source, epochs=2, shuffle=True, seed=5).batches(8):
    inputs = torch.tensor([[record["n"], 1.0] for record in records])
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    if edl.notify_batch_end():
        trained.append([record["n"] for record in records])
(out / f"trained-{edl.rank()}.json").write_text(json.dumps(trained))
