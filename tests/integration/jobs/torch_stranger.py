"""A script as a user writes it who knows PyTorch, and of edl what the quickstart says.

Clipping, accumulation, autocast with scaled losses, a schedule, dropout, an average of the weights, a loader with
worker processes. What the test adds: after each mini-batch the worker writes down the digest of its weights and of
their average.
"""

import contextlib
import json
import os
from typing import Any

import path
import task
import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import edl.torch as edl

BATCH, PART = 8, 3


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return task.SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(task.INPUTS[number]), torch.from_numpy(task.TARGETS[number])


def main() -> None:
    options = path.parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    edl.init()
    edl.measure_noise(every=4)
    torch.manual_seed(os.getpid())  # each worker has a dropout of its own; its first weights are thrown away

    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(16, 1)
    )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer: Any = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), model=model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=25)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
    edl.register(average=average, schedule=schedule, scaler=scaler)

    def weights() -> list[Any]:
        return [tensor.detach().numpy() for part in (model, average) for tensor in part.parameters()]

    path.tell_of_switches(edl, options.out, weights)
    loader = edl.ElasticDataLoader(Samples(), BATCH, shuffle=True, epochs=options.epochs, num_workers=1)
    while loader.shards.epochs_done < path.epochs_wanted(options):
        for rows, wanted in loader:
            assert edl.own_samples() in {0, len(rows)}, (edl.own_samples(), len(rows))
            optimizer.zero_grad()
            parts = list(zip(rows.split(PART), wanted.split(PART), strict=True))
            for number, (some, theirs) in enumerate(parts, 1):
                with contextlib.nullcontext() if number == len(parts) else optimizer.no_sync():
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = functional.mse_loss(model(some).float(), theirs) * (len(some) / len(rows))
                    scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, error_if_nonfinite=True)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
            schedule.step()
            path.pause(options)
            if edl.notify_batch_end():
                line = {"step": edl.step() - 1, "digest": path.digest(weights())}
                with (options.out / f"steps-{os.getpid()}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
    noise = edl.gradient_noise()
    assert noise is not None
    state = [path.digest(weights()), noise.sqr, int(average.n_averaged), schedule.last_epoch, scaler.get_scale()]
    path.finish(options.out, {"state": state, "batches": 0, "rank": edl.rank(), "step": edl.step(), "pid": os.getpid()})


main()
