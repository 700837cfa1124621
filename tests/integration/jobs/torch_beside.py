"""A PyTorch loop whose newcomers get their state beside a step; its sender may be killed as it sends."""

import argparse
import json
import os
import signal
import zlib
from pathlib import Path

import numpy as np
import path
import task
import torch

import edl.torch as edl
from edl.torch.torch_state_split import InPlace

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-time", type=float, default=0.04)
parser.add_argument("--epochs", type=int, help="known from the beginning")
parser.add_argument("--until", type=Path, required=True, help="a file that will hold the number of epochs")
parser.add_argument("--kill", type=Path, help="a file: while it is there, a worker that sends its state is killed")
parser.add_argument("--kill-at", type=int, default=1, help="with which of the portions that it sends")
parser.add_argument("--late", action="store_true", help="change what is registered after notify_batch_end()")
parser.add_argument("--thaws", action="store_true", help="train a layer from the tenth step on only")
parser.add_argument("--ballast-mb", type=int, default=0, help="more state, of layers that are not trained")
options = parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
whole = InPlace.part


sent: set[InPlace] = set()  # portions, or whole states


def part(self: InPlace, begin: int) -> memoryview:
    """The first half of it, and then no more."""
    if not edl.rehearsing():  # else it takes over its own
        sent.add(self)
    is_due = len(sent) >= options.kill_at and options.kill is not None and options.kill.exists()
    if begin > self.size // 2 and is_due:
        options.kill.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, begin)


InPlace.part = part  # type: ignore[method-assign]
edl.init()
torch.manual_seed(os.getpid())  # every worker begins with another model, and must be given the job's
model = torch.nn.Sequential(
    torch.nn.Linear(8, 700),
    torch.nn.LayerNorm(700),
    torch.nn.Tanh(),
    torch.nn.Linear(700, 700),
    torch.nn.Linear(700, 1),
)
model[0].ballast = torch.nn.ParameterList(
    torch.nn.Parameter(torch.rand(250_000), requires_grad=False) for _ in range(options.ballast_mb)
)
frozen = list(model[3].parameters()) if options.thaws else []
for parameter in frozen:
    parameter.requires_grad_(False)
first = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = edl.Optimizer(torch.optim.Adam(first, lr=0.001), model=model)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
trained = model[2:] if options.ballast_mb else model
average = torch.optim.swa_utils.AveragedModel(trained, avg_fn=torch.optim.swa_utils.get_ema_avg_fn(0.9))
extra = edl.register(average=average, schedule=schedule, batches=0)
checks: list[int] = []  # of the ids of committed batches
own: list[int] = []  # samples of its own in each mini-batch
shards = edl.elastic_shard_generator(task.SAMPLES, epochs=options.epochs, shuffle=True)
while shards.epochs_done < path.epochs_wanted(options):
    for ids in shards.batches(4):
        rehearses, mine = edl.rehearsing(), edl.own_samples()
        if frozen and edl.step() >= 10:
            for parameter in frozen:
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": frozen, "lr": 0.0005, "initial_lr": 0.0005})
            frozen = []
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[ids]), targets[ids]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        path.pause(options)
        optimizer.step()
        schedule.step()
        if not options.late:
            average.update_parameters(trained)
        extra.batches += 1
        if edl.notify_batch_end():
            if options.late:
                average.update_parameters(trained)
            checks.append(zlib.crc32(np.asarray(ids, np.int64).data))
        if not rehearses:
            own.append(mine)

state = [*model.parameters(), *average.parameters()]
state += [value for one in optimizer.state_dict()["state"].values() for value in one.values()]
result = {"rank": edl.rank(), "state": path.digest(one.detach().numpy() for one in state), "batches": extra.batches}
result |= {"step": edl.step(), "rate": schedule.get_last_lr(), "own": own, "checks": checks}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
