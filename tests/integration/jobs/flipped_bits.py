"""Trains with virtual workers, and flips a bit on one worker where a file says so."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

import torch
from torch import nn

import edl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--pace", type=float, default=0.0)
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
SAMPLES = 4096
inputs = torch.randn(SAMPLES, 64)
targets = (inputs[:, :10] + 0.1 * torch.randn(SAMPLES, 10)).argmax(1)
model = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
edl.init()
optimizer = edl.Optimizer(optimizer, model=model)
done = -1


class Wish:
    """What the file asks of this worker in this step."""

    def __init__(self) -> None:
        self.kind = ""
        try:
            asked = json.loads((options.out / "flip.json").read_text())
        except FileNotFoundError:
            return
        if asked["number"] > done and asked["pid"] == os.getpid() and not edl.rehearsing():
            self.kind, self.number = asked["kind"], asked["number"]
            self.source = random.Random(f"{asked['seed']} {asked['number']}")

    def flip(self, kind: str) -> None:
        """Flip a bit, if this kind of tensor is asked for."""
        global done
        if self.kind != kind:
            return
        if kind == "moment":
            states = [optimizer.state[one] for one in model.parameters() if one in optimizer.state]
            tensors = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        else:
            tensors = [one if kind == "weight" else one.grad for one in model.parameters()]
        if not tensors:
            return
        chosen = self.source.choices(tensors, weights=[one.numel() for one in tensors])[0]
        at, bit = self.source.randrange(chosen.numel()), self.source.randrange(32)
        with torch.no_grad():
            words = chosen.view(-1).view(torch.int32)
            before = chosen.view(-1)[at].item()
            words[at] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
        done, self.kind = self.number, ""
        told = {"number": done, "step": edl.step(), "before": before, "after": chosen.view(-1)[at].item(), "bit": bit}
        (options.out / f"flipped{done}.new").write_text(json.dumps(told))
        (options.out / f"flipped{done}.new").rename(options.out / f"flipped{done}.json")


for ids in edl.elastic_shard_generator(SAMPLES, epochs=10**6, shuffle=True).batches(4):
    wish = Wish()
    wish.flip("weight")
    wish.flip("moment")
    optimizer.zero_grad()
    for part, share in edl.microbatches(ids):
        (nn.functional.cross_entropy(model(inputs[part]), targets[part]) * share).backward()
        wish.flip("part")
    wish.flip("gradient")
    optimizer.step()
    if options.pace:
        time.sleep(options.pace)
    edl.notify_batch_end()
    if edl.step() > options.steps:
        break
