"""Handwritten digits, by a script that was one of DistributedDataParallel.

edl run -np 2 python examples/ddp_digits.py
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as edl

table = np.loadtxt("data/digits/digits.csv.gz", delimiter=",", dtype=np.float32)
images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))
dataset = TensorDataset(images[:1400], labels[:1400])
loader = DataLoader(dataset, batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, loader = edl.prepare(model, optimizer, loader)

for epoch in loader.epochs(8):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    print(f"epoch {epoch} accuracy {accuracy:.3f}")
