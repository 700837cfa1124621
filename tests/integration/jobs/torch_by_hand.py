"""A model that is trained by hand, without any optimizer. `--averages`: the script averages its gradients by itself."""

from __future__ import annotations

import copy
import sys

import torch

import edl.torch as edl

torch.set_num_threads(1)
edl.init()
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
x = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))
for ids in edl.elastic_shard_generator(48, epochs=1).batches(3):
    model(x[ids]).square().mean().backward()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            gradient = parameter.grad
            assert gradient is not None
            if "--averages" in sys.argv:
                gradient = edl.allreduce(gradient, name=f"gradient.{number}")
            parameter.sub_(0.1 * gradient)
            parameter.grad = None
    if edl.rank() == 0:
        best = copy.deepcopy(model)  # of this worker alone
    edl.notify_batch_end()
