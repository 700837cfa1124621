"""PyTorch with all that a script may register, in a job that is saved and goes on later.

Batch norm and dropout, two passes of backward for one update, mixed precision with scaled losses, clipping, a schedule,
a moving average, and a loader with a process. `--own`: a model without all that, on data that edl does not know of.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import path
import task
import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

import edl.torch as edl
from edl.errors import UsageError

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-time", type=float, default=0.03)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=task.SAMPLES)
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--optimizer", default="Adam")
parser.add_argument("--large", type=int, default=0, help="so many numbers more in the model: a copy takes its time")
parser.add_argument("--own", type=int, default=0, help="so many steps on data of the script's own")
parser.add_argument("--noise", type=float, default=0.1, help="of the samples, as the loader's process draws it")
parser.add_argument("--loaders", type=int, default=1, help="processes that load")
parser.add_argument("--ask", type=int, default=0, help="all workers ask for a checkpoint at this step")
parser.add_argument("--touch", type=Path, help="as long as that file is there, weights change beside the copy")
parser.add_argument("--evaluate", type=int, default=0, help="after that step it evaluates, until its job ends")
parser.add_argument("--swap", action="store_true", help="by other weights, as with a moving average of them")
parser.add_argument("--fails-at", type=int, default=0, help="the batch that it raises an error in")
parser.add_argument("--places", type=Path, help="a folder in which rank 0 keeps its loader's place after each step")
options = parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
edl.init()
torch.manual_seed(edl.rank())  # each draws numbers of its own; the model is that of rank 0


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return options.samples

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs[number % task.SAMPLES] + self.noise(), targets[number % task.SAMPLES]

    def noise(self) -> float:
        """An augmentation, in the loader's process: from each of the places that such draw from."""
        return options.noise * (random.random() + float(np.random.rand()) + float(torch.rand(())) - 1.5)  # noqa: NPY002


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        width = options.width
        first, norm = torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width)
        super().__init__(first, norm, torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))
        self.rest = torch.nn.Parameter(torch.zeros(options.large))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in list(self.children()):
            rows = layer(rows)
        return rows + self.rest.sum()


def weights_change() -> None:
    """Between two updates, as no script should."""
    if options.touch is not None and options.touch.exists():
        with torch.no_grad():
            model[0].weight.add_(0.0)


def evaluate() -> None:
    """All workers after the same step; it draws no random numbers."""
    if edl.step() != options.evaluate:
        return
    for one in model.parameters() if options.swap else ():
        one.data.mul_(0.5)
    model.eval()
    while True:
        (options.out / f"evaluates-{edl.rank()}").touch()
        with torch.no_grad():
            model(inputs)
        time.sleep(0.01)


def tensors(*holders: Any) -> Any:
    """All that their state dicts hold, in order."""
    for holder in holders:
        yield from leaves(holder.state_dict())


def leaves(value: Any) -> Any:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None and not isinstance(value, str):
        yield torch.as_tensor(value).detach().numpy()


model: Any = Net()
trained: list[int] = []
began: list[tuple[int, int]] = []  # step and epoch of each mini-batch
optimizer: Any = edl.Optimizer(getattr(torch.optim, options.optimizer)(model.parameters(), lr=0.01), model=model)


def own_data() -> list[Any]:
    """The script counts for itself where it is."""
    extra = edl.register(batches=0)
    trained.append(0)
    while extra.batches < options.own:
        optimizer.zero_grad()
        trained.append(extra.batches)
        ids = torch.arange(8) + 8 * (2 * extra.batches + edl.rank())
        functional.mse_loss(model(inputs[ids % task.SAMPLES]), targets[ids % task.SAMPLES]).backward()
        optimizer.step()
        time.sleep(options.step_time)
        extra.batches += 1
        edl.notify_batch_end()
        evaluate()
    return [extra.batches]


def keep_place(loader: Any) -> None:
    """By torchdata's protocol, as a script has it that saves its loader with the model."""
    if options.places is not None and edl.rank() == 0 and not edl.resumed():
        kept = loader.state_dict()
        (options.places / f"{kept['steps']}.json").write_text(json.dumps(kept))


def take_place(loader: Any) -> None:
    """That of the checkpoint is taken, and the one after it, which the job had come to, is not."""
    origin = edl.resumed()
    if options.places is None or origin is None:
        return
    kept = [json.loads((options.places / f"{step}.json").read_text()) for step in (origin.step, origin.step + 1)]
    loader.load_state_dict(kept[0])
    try:
        loader.load_state_dict(kept[1])
    except UsageError as error:
        (options.out / f"refused-{os.getpid()}").write_text(str(error))


def by_loader() -> list[Any]:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.97)
    average = AveragedModel(model, avg_fn=get_ema_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    extra = edl.register(batches=0, scheduler=scheduler, average=average, scaler=scaler)
    loader = edl.ElasticDataLoader(Rows(), 8, True, epochs=options.epochs, num_workers=options.loaders)
    take_place(loader)
    for rows, wanted in loader:
        weights_change()
        if not edl.rehearsing():
            began.append((edl.step(), edl.epoch()))
        if options.ask == edl.step():
            edl.checkpoint()
        if extra.batches == options.fails_at > 0:
            raise RuntimeError(f"batch {extra.batches} is too much")
        optimizer.zero_grad()
        half = len(rows) // 2
        if half > 1:
            with optimizer.no_sync():
                scaler.scale(loss_of(rows[:half], wanted[:half]) * (half / len(rows))).backward()
        rest = rows[half if half > 1 else 0 :]
        share = len(rest) / len(rows)
        scaler.scale(loss_of(rest, wanted[len(rows) - len(rest) :]) * share).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
        time.sleep(options.step_time)
        extra.batches += 1
        edl.notify_batch_end()
        keep_place(loader)
        evaluate()
    # Statistics of batch norm are each worker's own while a ring stands, and those of rank 0 are saved.
    averaged = [one.detach().numpy() for one in average.parameters()]
    return [extra.batches, path.digest([*averaged, *tensors(scheduler, scaler)])]


def loss_of(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    if len(rows) < 2:  # batch norm computes no statistics of one
        return torch.stack([parameter.sum() for parameter in model.parameters()]).sum() * 0.0
    with torch.autocast("cpu", torch.bfloat16):
        found = model(rows)
    return functional.mse_loss(found.float(), wanted)


more = own_data() if options.own else by_loader()
rank = edl.rank()
learned = [parameter.detach().numpy() for parameter in model.parameters()]
learned += tensors(optimizer, *([model] if rank == 0 else []))
numbers = path.digest([torch.get_rng_state().numpy()])
(options.out / f"step-{rank}").write_text(str(edl.step()))
if (origin := edl.resumed()) and began:
    told = [origin.path, origin.step, origin.life, origin.epoch, began[0]]
    (options.out / f"origin-{os.getpid()}.json").write_text(json.dumps(told))
result = {"rank": rank, "learned": path.digest(learned), "more": more, "random": numbers}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
