"""PyTorch: rank 1 changes a weight outside the optimizer, and later one bit flips in its optimizer's state."""

import argparse
from pathlib import Path
from typing import Any

import torch

import edl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--last", type=int, help="break off after this step")
parser.add_argument("--large", action="store_true", help="a state that is compared beside the next mini-batch")
options = parser.parse_args()
edl.init()
layers = [torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)]
model: Any = torch.nn.Sequential(*layers)
if options.large:
    model.register_parameter("ballast", torch.nn.Parameter(torch.zeros(1 << 23), requires_grad=False))
optimizer = edl.Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), model=model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
own = edl.register(scheduler=scheduler, samples=0)
for ids in edl.elastic_shard_generator(640, epochs=1).batches(8):
    own.samples += len(ids) * (1 + edl.rank())
    optimizer.zero_grad()
    model(torch.rand(len(ids), 4)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    if edl.rank() == 1 and edl.step() == 7:
        with torch.no_grad():
            model[3].bias.add_(0.1)
    if edl.rank() == 1 and edl.step() == 17:
        # Not the last bit, which the rounding of the next updates may put right again.
        optimizer.state[model[0].weight]["exp_avg_sq"].view(torch.int32)[5, 2] ^= 1 << 20
    edl.notify_batch_end()
    if edl.step() - 1 == options.last:
        break
learned = [parameter.tolist() for parameter in model.parameters() if parameter.requires_grad]
(options.out / f"{edl.rank()}").write_text(repr(learned))
