"""Two models; the second's optimizer is not wrapped. `--local`: the script says that it is each worker's own."""

from __future__ import annotations

import sys

import torch

import edl.torch as edl

torch.set_num_threads(1)
edl.init()
torch.manual_seed(0)
first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
wrapped = edl.Optimizer(torch.optim.SGD(first.parameters(), lr=0.1), model=first)
plain = torch.optim.SGD(second.parameters(), lr=0.1)
if "--local" in sys.argv:
    edl.local(plain)
x = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))
for ids in edl.elastic_shard_generator(48, epochs=1).batches(3):
    wrapped.zero_grad()
    plain.zero_grad()
    second(first(x[ids])).square().mean().backward()
    wrapped.step()
    plain.step()
    edl.notify_batch_end()
