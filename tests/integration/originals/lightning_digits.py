"""Handwritten digits with Lightning.

edl run -np 2 python examples/lightning_digits.py
"""

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class LitDigits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch):
        images, labels = batch
        loss = functional.cross_entropy(self.layers(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch):
        images, labels = batch
        found = self.layers(images)
        self.log("val_loss", functional.cross_entropy(found, labels))
        self.log("val_accuracy", (found.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


table = np.loadtxt("data/digits/digits.csv.gz", delimiter=",", dtype=np.float32)
digits = TensorDataset(torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64)))
train_set, val_set = torch.utils.data.random_split(digits, [0.8, 0.2], torch.Generator().manual_seed(0))
trainer = pl.Trainer(max_epochs=10, default_root_dir="out", callbacks=[EarlyStopping("val_loss")])
trainer.fit(LitDigits(), DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(val_set, batch_size=32))
if trainer.is_global_zero:
    print(f"accuracy {trainer.callback_metrics['val_accuracy']:.3f}")
