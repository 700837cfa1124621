"""Handwritten digits with DistributedDataParallel.

torchrun --standalone --nproc-per-node 2 ddp_digits.py
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
table = np.loadtxt("data/digits/digits.csv.gz", delimiter=",", dtype=np.float32)
images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))
dataset = TensorDataset(images[:1400], labels[:1400])
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(8):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    print(f"epoch {epoch} accuracy {accuracy:.3f}")

dist.destroy_process_group()
