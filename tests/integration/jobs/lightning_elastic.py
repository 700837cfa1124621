"""Lightning's Trainer, by workers that come and go: schedules, callbacks, validation, and what each worker saw."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import path
import task
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import edl.lightning  # noqa: F401 - what it registers
import edl.torch as elastic

path.parser.add_argument("--accumulate", type=int, default=1)
path.parser.add_argument("--patience", type=int, default=0, help="of EarlyStopping on a loss that never falls")
path.parser.add_argument("--replay", type=Path, help="of these mini-batches, by Lightning alone")
path.parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, more of the Trainer")
path.parser.add_argument("--manual", action="store_true", help="two optimizers, which the module steps")
path.parser.add_argument("--turns", action="store_true", help="each of them by a backward pass of its own, as a GAN's")
path.parser.add_argument("--leaves-out", action="store_true", help="each worker some batches, not the same as others")
path.parser.add_argument("--plain", action="store_true", help="a model without statistics of its own")
options = path.parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(7 if options.plain else os.getpid())  # else each begins with another model, and is given the job's
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
numbers = torch.arange(task.SAMPLES)


class Net(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        middle = torch.nn.Identity() if options.plain else torch.nn.BatchNorm1d(6)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 6), middle, torch.nn.Tanh(), torch.nn.Linear(6, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
        if options.turns:
            return self.take_turns(batch)
        if options.leaves_out and (batch_idx + self.trainer.global_rank) % 5 == 3:
            return None
        loss = self.loss_of(batch)
        if options.manual:
            optimizers = self.optimizers()
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in optimizers:
                optimizer.step()
        return loss

    def take_turns(self, batch: Any) -> None:
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            self.manual_backward(self.loss_of(batch))
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)

    def loss_of(self, batch: Any) -> torch.Tensor:
        _, rows, wanted = batch
        if len(rows) < 2 and not options.plain:  # batch norm computes no statistics of one
            return sum(parameter.sum() for parameter in self.parameters()) * 0.0
        loss = functional.mse_loss(self.layers(rows), wanted)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        _, rows, wanted = batch
        self.log("val_loss", functional.mse_loss(self.layers(rows), wanted))
        self.log("never_falls", 1.0)

    def configure_optimizers(self) -> Any:
        if options.manual:
            self.automatic_optimization = False
            return [torch.optim.Adam(self.layers[number].parameters(), lr=0.01) for number in (0, 3)]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": "step"}}


class Seen(Callback):  # type: ignore[misc]
    """What callbacks of a script would go by."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.validations = 0
        self.batches = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "validations": self.validations, "batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = list(state_dict["epochs"])
        self.validations, self.batches = state_dict["validations"], state_dict["batches"]

    def on_train_batch_end(self, *_: Any) -> None:
        path.pause(options)
        self.batches += 1

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.validations += not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.epochs.append(trainer.current_epoch)
        if trainer.current_epoch + 1 >= path.epochs_wanted(options):
            trainer.should_stop = True


def tensors(*holders: Any) -> Iterator[Any]:
    for holder in holders:
        for value in holder.state_dict().values() if not isinstance(holder, dict) else holder.values():
            if isinstance(value, torch.Tensor):
                yield value.detach().numpy()
            elif isinstance(value, dict):
                yield from tensors(value)


seen = Seen()
told = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
stopping = [EarlyStopping("never_falls", patience=options.patience)] if options.patience else []
saving = ModelCheckpoint(monitor="val_loss", save_top_k=2, dirpath=str(options.out / "saved"))
trainer = pl.Trainer(
    strategy="auto" if options.replay else "edl",
    accelerator="cpu",
    max_epochs=1 if options.replay else options.epochs or 100_000,
    gradient_clip_val=None if options.plain or options.manual else 0.5,
    precision="32-true" if options.plain else "bf16-mixed",
    callbacks=[seen, *stopping, saving, *([] if options.manual else [LearningRateMonitor("step")])],
    logger=CSVLogger(str(options.out / "logs")),
    log_every_n_steps=5,
    enable_progress_bar=False,
    enable_model_summary=False,
    **{"accumulate_grad_batches": options.accumulate, **told},
)
net = Net()
samples = TensorDataset(numbers, inputs, targets)
if options.replay:
    loader = DataLoader(samples, batch_sampler=json.loads(options.replay.read_text()))
else:
    # Without statistics of batch norm, which stay each survivor's own.
    path.tell_of_switches(elastic, options.out, lambda: tensors(dict(net.named_parameters())))
    loader = DataLoader(samples, batch_size=8, shuffle=True)
trainer.fit(net, loader, DataLoader(samples, batch_size=64))
learned = [parameter.detach().numpy() for parameter in net.parameters()]
with torch.no_grad():
    net.eval()
    loss = functional.mse_loss(net.layers(inputs), targets).item()
rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
state = [seen.epochs, seen.validations, seen.batches, rates, trainer.current_epoch, path.digest(learned)]
state += [saving.best_model_path, {name: float(score) for name, score in sorted(saving.best_k_models.items())}]
best = Path(saving.best_model_path).exists()
result = {"global_step": trainer.global_step, "loss": loss, "saved": best, "state": state, "batches": 0, "rank": 0}
if not options.replay:
    origin, result["rank"] = elastic.resumed(), elastic.rank()
    result["steps"] = elastic.step() - 1 + (origin.step if origin else 0)
path.finish(options.out, result)
