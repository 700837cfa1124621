"""PyTorch: ways in which scripts end."""

import argparse
import sys
from pathlib import Path

import torch

import edl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=["apart", "halved", "saved", "exit", "without 20", "without 40"], required=True)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
edl.init()
model = torch.nn.Linear(4, 1)
optimizer = edl.Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), model=model)
shards = edl.elastic_shard_generator(160)
tried = False
for _epoch in range(2):
    for ids in shards.batches(4):
        leaves_out = options.how == f"without {edl.step()}" and edl.rank() == 1 and not tried  # it catches an exception
        tried = tried or leaves_out
        if options.how != "without 20" or (edl.step() % 2 == 0 and not leaves_out):  # or in each second mini-batch
            optimizer.zero_grad()
            model(torch.rand(len(ids), 4)).square().mean().backward()
            if not leaves_out:
                optimizer.step()
        edl.notify_batch_end()
        if options.how == "apart" and edl.step() == 30 and edl.rank() == 1:
            sys.exit(0)
if options.how == "halved" and edl.rank() == 0:  # as for an export
    model.half()
if options.how == "saved" and edl.rank() == 0:
    torch.save(model.state_dict(), options.out / "model.pt")
if options.how == "exit":
    sys.exit(0)
