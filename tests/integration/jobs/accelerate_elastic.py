"""A loop as Accelerate's documentation has it, by workers that come and go."""

import json
from pathlib import Path
from typing import Any

import path
import task
import torch
from accelerate import Accelerator as Alone
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as elastic
from edl.accelerate import Accelerator

path.parser.add_argument("--accumulate", type=int, default=1)
path.parser.add_argument("--replay", type=Path, help="of these mini-batches, by Accelerate alone")
options = path.parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(7)
samples = TensorDataset(torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS))
accelerator: Any = (
    Alone(cpu=True) if options.replay else Accelerator(cpu=True, gradient_accumulation_steps=options.accumulate)
)
if options.replay:
    loader: Any = DataLoader(samples, batch_sampler=json.loads(options.replay.read_text()))
else:
    loader = DataLoader(samples, batch_size=8, shuffle=True)
model: Any = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, step_size=200, gamma=0.9 if options.accumulate > 1 else 1.0)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
updates = 0
epochs: list[int] = []
if not options.replay:
    path.tell_of_switches(elastic, options.out, lambda: (one.detach().numpy() for one in model.parameters()))


def wanted() -> Any:
    """As `loader.epochs(n)`, for a number that the test says later."""
    while loader.parts.loader.shards.epochs_done < path.epochs_wanted(options):
        yield loader.parts.loader.shards.epochs_done


known = options.until.exists()  # as in the life after a preemption
for epoch in range(1) if options.replay else loader.epochs(path.epochs_wanted(options)) if known else wanted():
    model.train()
    for rows, targets in loader:
        with accelerator.accumulate(model):
            loss = functional.mse_loss(model(rows), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients and options.accumulate > 1:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if not options.replay:
            path.pause(options)
    epochs.append(epoch)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.save(accelerator.get_state_dict(model), options.out / "model.pt")
learned = path.digest(one.detach().numpy() for one in model.parameters())
with torch.no_grad():
    found = functional.mse_loss(model(samples.tensors[0]), samples.tensors[1]).item()
result = {"state": [learned, scheduler.get_last_lr()], "batches": 0, "rank": 0, "loss": found, "epochs": epochs}
if not options.replay:
    result["rank"] = elastic.rank()
path.finish(options.out, result)
