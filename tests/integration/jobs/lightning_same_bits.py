"""Lightning's Trainer with virtual workers; tells the digest of all that it has trained."""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import edl.lightning  # noqa: F401 - what it registers
import edl.torch as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--pace", type=Path, required=True)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
drawn = torch.Generator().manual_seed(1)
samples = TensorDataset(torch.randn(102, 8, generator=drawn), torch.randn(102, 1, generator=drawn))


class Net(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows, wanted = batch
        loss = nn.functional.mse_loss(self.layers(rows), wanted) * (1 + batch_idx % 3)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        time.sleep(float(options.pace.read_text()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


net = Net()
trainer = pl.Trainer(
    strategy="edl",
    accelerator="cpu",
    max_epochs=options.epochs,
    accumulate_grad_batches=2,
    gradient_clip_val=0.5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    default_root_dir=options.out,
)
trainer.fit(net, DataLoader(samples, batch_size=2, shuffle=True), DataLoader(samples, batch_size=50))
optimizer = trainer.optimizers[0]
found = [*net.state_dict().values()]
found += [one for state in optimizer.state_dict()["state"].values() for one in state.values()]
told = repr((trainer.lr_scheduler_configs[0].scheduler.get_last_lr(), trainer.global_step))
digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in found) + told.encode())
(options.out / f"digest-{elastic.rank()}.json").write_text(json.dumps({"digest": digest.hexdigest(), "told": told}))
