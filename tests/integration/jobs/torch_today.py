"""What scripts of PyTorch use today: images with all of it at once, two optimizers (a GAN), and `edl.prepare`."""

from collections.abc import Iterator
from typing import Any

import path
import task
import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.checkpoint import checkpoint

import edl.torch as edl

options = path.parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
edl.init()
images = torch.from_numpy(task.INPUTS).reshape(-1, 1, 2, 4).repeat(1, 3, 2, 1)
targets = torch.from_numpy(task.TARGETS)


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return task.SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return images[number], targets[number]


def tensors(*holders: Any) -> Iterator[Any]:
    for holder in holders:
        for value in holder.state_dict().values():
            if isinstance(value, torch.Tensor):
                yield value.detach().contiguous().numpy()


class Net(torch.nn.Module):
    """A part of it is computed anew in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.last = torch.nn.Linear(4 * 16, 1)

    def forward(self, rows: torch.Tensor) -> Any:
        middle = checkpoint(lambda x: functional.relu(self.norm(self.first(x))), rows, use_reentrant=False)
        return self.last(middle.flatten(1))


def batches() -> Iterator[Any]:
    loader = edl.ElasticDataLoader(Samples(), 8, shuffle=True, epochs=options.epochs)
    while loader.shards.epochs_done < path.epochs_wanted(options):
        for batch in loader:
            yield batch
            path.pause(options)
            edl.notify_batch_end()


def images_of_today() -> list[Any]:
    """channels_last, torch.compile, bfloat16 with a GradScaler, gradient checkpointing, an average of the weights."""
    model: Any = Net()
    model.to(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend="aot_eager")
    average = AveragedModel(model, avg_fn=get_ema_avg_fn(0.9))
    optimizer = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True), model=model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    edl.register(average=average, scaler=scaler)
    path.tell_of_switches(edl, options.out, lambda: tensors(model, average))
    for rows, wanted in batches():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.mse_loss(compiled(rows.to(memory_format=torch.channels_last)).float(), wanted)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
    assert model.first.weight.is_contiguous(memory_format=torch.channels_last)
    return [int(average.n_averaged), path.digest(tensors(model, average))]


def gan() -> list[Any]:
    """Two models, two optimizers, two updates a step."""
    makes: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 48))
    judges: Any = torch.nn.Sequential(torch.nn.Linear(48, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    making = edl.Optimizer(torch.optim.Adam(makes.parameters(), lr=0.01), model=makes)
    judging = edl.Optimizer(torch.optim.Adam(judges.parameters(), lr=0.01), model=judges)
    path.tell_of_switches(edl, options.out, lambda: tensors(makes, judges))
    for rows, _ in batches():
        found = makes(torch.randn(len(rows), 4))
        judging.zero_grad()
        real, made = judges(rows.flatten(1)), judges(found.detach())
        (functional.softplus(-real).mean() + functional.softplus(made).mean()).backward()
        judging.step()
        making.zero_grad()
        functional.softplus(-judges(found)).mean().backward()
        making.step()
    return [path.digest(tensors(makes, judges))]


def prepared() -> list[Any]:
    """A script that was one of DistributedDataParallel."""
    model: Any = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    plain = torch.utils.data.DataLoader(Samples(), batch_size=8, shuffle=True)
    model, optimizer, loader = edl.prepare(model, optimizer, plain)
    path.tell_of_switches(edl, options.out, lambda: tensors(model))
    for epoch in loader.epochs(2**31):
        if epoch >= path.epochs_wanted(options):
            break
        for rows, wanted in loader:
            optimizer.zero_grad()
            functional.mse_loss(model(rows), wanted).backward()
            optimizer.step()
            path.pause(options)
    return [path.digest(tensors(model))]


state = {"images": images_of_today, "gan": gan, "prepared": prepared}[options.way]()
path.finish(options.out, {"state": state, "batches": 0, "rank": edl.rank(), "step": edl.step()})
