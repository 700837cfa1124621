"""Handwritten digits with Accelerate.

edl run -np 2 python examples/accelerate_digits.py
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from edl.accelerate import Accelerator

table = np.loadtxt("data/digits/digits.csv.gz", delimiter=",", dtype=np.float32)
images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))
train_dataloader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.8)

accelerator = Accelerator()
model, optimizer, train_dataloader, scheduler = accelerator.prepare(model, optimizer, train_dataloader, scheduler)
for epoch in train_dataloader.epochs(8):
    model.train()
    for inputs, targets in train_dataloader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    accelerator.print(f"epoch {epoch} accuracy {accuracy:.3f}")
