"""A script whose rank 0 does what the others do not, from the first mini-batch on: it wraps, or reduces."""

from __future__ import annotations

import sys

import torch

import edl.torch as edl

torch.set_num_threads(1)
edl.init()
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if edl.rank() == 0 or "wraps" not in sys.argv:
    optimizer = edl.Optimizer(optimizer, model=model)
for ids in edl.elastic_shard_generator(480, epochs=1).batches(3):
    optimizer.zero_grad()
    loss = model(torch.ones(len(ids), 3)).square().mean()
    loss.backward()
    optimizer.step()
    if edl.rank() == 0 and "reduces" in sys.argv:
        edl.allreduce(loss.detach(), name="loss")
    edl.notify_batch_end()
