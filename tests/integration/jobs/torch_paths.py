"""Ways of training with PyTorch, by workers that come and go."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import path
import task
import torch
from torch.nn import functional

import edl.torch as edl

options = path.parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
edl.init()
torch.manual_seed(os.getpid())  # every worker begins with another model, and must be given the job's
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
BATCH = 8


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return task.SAMPLES

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return number, inputs[number], targets[number]


def tensors(*holders: Any) -> Iterable[Any]:
    """All that their state dicts hold, in order."""
    for holder in holders:
        yield from leaves(holder.state_dict())


def leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None and not isinstance(value, str):
        yield torch.as_tensor(value).detach().numpy()


def groups() -> list[Any]:
    """Parameter groups, a scheduler, two passes of backward for one update, clipping, batch norm; rates that follow."""
    edl.scale_rate("linear", base_batch=2 * BATCH)
    slowing = path.Slowing()
    edl.schedule_rate(slowing, epochs=slowing.EPOCHS)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    slow: dict[str, Any] = {"params": model[0].parameters(), "lr": 0.001, "weight_decay": 0.1}
    optimizer: Any = torch.optim.AdamW([slow, {"params": [*model[1].parameters(), *model[3].parameters()]}], lr=0.01)
    optimizer = edl.Optimizer(optimizer, model=model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    extra = edl.register(batches=0, scheduler=scheduler)
    trained = dict(model.named_parameters())  # statistics of batch norm are each survivor's own
    path.tell_of_switches(edl, options.out, lambda: [*leaves(trained), *tensors(optimizer, scheduler)])
    shards = edl.elastic_shard_generator(task.SAMPLES, epochs=options.epochs, shuffle=True)
    while shards.epochs_done < path.epochs_wanted(options):
        for ids in shards.batches(BATCH):
            optimizer.zero_grad()
            first, second = ids[: len(ids) // 2], ids[len(ids) // 2 :]
            with optimizer.no_sync():
                (mean(model, first) * (len(first) / len(ids))).backward()
            (mean(model, second) * (len(second) / len(ids))).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            path.pause(options)
            extra.batches += 1
            scheduler.step()
            edl.notify_batch_end()
    slowing.expect_each_sample_counted_once(edl.size() * BATCH, task.SAMPLES, shards.epochs_done)
    learned = [parameter.detach().numpy() for parameter in model.parameters()]
    return [extra.batches, path.digest([*learned, *tensors(optimizer, scheduler)])]


def mean(model: torch.nn.Module, ids: Any) -> torch.Tensor:
    if len(ids) < 2:  # batch norm computes no statistics of one
        return torch.stack([parameter.sum() for parameter in model.parameters()]).sum() * 0.0
    return functional.mse_loss(model(inputs[ids]), targets[ids])


class Words(torch.nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(task.SAMPLES, 4, sparse=True)
        self.last = torch.nn.Linear(12, 1)

    def forward(self, numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.table(numbers), rows], dim=1))


def tried(model: Words, multipliers: tuple[float, ...]) -> list[float]:
    """The losses after steps of the last layer, on samples of this worker's own."""
    numbers = torch.arange(8) + 8 * edl.rank()
    weights = list(model.last.parameters())
    loss = lambda: functional.mse_loss(model(numbers, inputs[numbers]), targets[numbers])  # noqa: E731
    slopes = torch.autograd.grad(loss(), weights)
    before = [weight.detach().clone() for weight in weights]
    losses = []
    with torch.no_grad():
        for multiplier in multipliers:
            for weight, value, slope in zip(weights, before, slopes, strict=True):
                weight.copy_(value - 0.05 * multiplier * slope)
            own = multiplier - 0.99 - edl.rank() / 100  # alone, each worker would go elsewhere
            losses.append(loss().item() + 100 * own**2)
        for weight, value in zip(weights, before, strict=True):
            weight.copy_(value)
    return losses


def compiled() -> list[Any]:
    """As `amp`, with a compiled model."""
    return amp(lambda model: torch.compile(model, backend="aot_eager"))


def amp(prepared: Callable[[Words], Any] = lambda model: model) -> list[Any]:
    """Mixed precision with scaled losses, sparse gradients, a loader with a process, a tuned rate."""
    model = Words()
    forward = prepared(model)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model=model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    extra = edl.register(batches=0, scaler=scaler)
    path.tell_of_switches(edl, options.out, lambda: tensors(model, optimizer, scaler))
    tuner = edl.RateTuner(lambda multipliers: tried(model, multipliers), every=7)
    edl.schedule_rate(tuner, epochs=1000)
    loader = edl.ElasticDataLoader(Samples(), BATCH, True, epochs=options.epochs, num_workers=1)
    while loader.shards.epochs_done < path.epochs_wanted(options):
        for numbers, rows, wanted in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.mse_loss(forward(numbers, rows).float(), wanted)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.last.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            path.pause(options)
            extra.batches += 1
            edl.notify_batch_end()
    assert tuner.at(1.0) != 1.0, "it has found the rate to be exactly right"
    return [extra.batches, path.digest([*tensors(model, optimizer, scaler), [tuner.at(1.0)]])]


def horovod() -> list[Any]:
    """As Horovod's elastic examples are written: a restarted function, a sampler, a metric of its own, evaluation."""
    import edl.torch as hvd

    sampler = hvd.elastic.ElasticSampler(Samples(), shuffle=True)
    loader = hvd.elastic.DataLoader(Samples(), batch_size=BATCH, sampler=sampler, num_workers=1)
    evaluated: Any = range(50)
    test_sampler = hvd.elastic.ElasticSampler(evaluated, shuffle=False)
    test_loader = hvd.elastic.DataLoader(evaluated, batch_size=4, sampler=test_sampler)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=2
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def train(state: Any) -> None:
        for _, rows, wanted in loader:
            optimizer.zero_grad()
            # A rate that follows from the state, as of a warm-up: it must be the same everywhere.
            optimizer.param_groups[0]["lr"] = 0.01 * hvd.size() / (1 + state.epoch + state.batch / 100)
            loss = torch.zeros(())
            for half in (slice(None, BATCH // 2), slice(BATCH // 2, None)):
                if len(rows[half]):
                    loss = functional.mse_loss(model(rows[half]), wanted[half]) * (len(rows[half]) / len(rows))
                    loss.backward()
            state.losses.append(hvd.allreduce(loss.detach(), name="loss").item())
            del state.losses[:-3]
            optimizer.step()
            path.pause(options)
            state.batch += 1
            sampler.record_batch(state.batch, BATCH)
            if state.batch % 2:  # the loader is where the others end
                state.commit()

    @torch.no_grad()
    def evaluate() -> None:
        evaluating = options.out / f"evaluating-{os.getpid()}"
        evaluating.touch()
        for numbers in test_loader:
            path.pause(options)
            hvd.allreduce(model(inputs[numbers]).mean(), name="evaluated")
        evaluating.unlink()

    @hvd.elastic.run
    def full_train(state: Any) -> None:
        calls.append(state.epoch)
        while state.epoch < path.epochs_wanted(options):
            train(state)
            evaluate()
            state.epoch += 1
            state.batch = 0
            sampler.set_epoch(state.epoch)
            state.commit()

    calls: list[int] = []
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, batch=0, losses=[])
    path.tell_of_switches(edl, options.out, lambda: [*tensors(model, optimizer), *leaves([state.epoch, state.losses])])
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    full_train(state)
    assert len(calls) >= len(resets) + 1, (calls, resets)
    assert calls == sorted(calls), "an epoch was trained again"
    return [state.epoch, state.losses, path.digest(tensors(model, optimizer))]


state = {"groups": groups, "amp": amp, "compiled": compiled, "horovod": horovod}[options.way]()
path.finish(options.out, {"state": state, "batches": 0, "rank": edl.rank(), "step": edl.step()})
