"""Handwritten digits with PyTorch."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=Path("data/digits/digits.csv.gz"))
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--step-time", type=float, default=0.0, help="seconds that a step takes at least, to watch it")
options = parser.parse_args()

hvd.init()
torch.manual_seed(0)
torch.set_num_threads(1)
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

table = np.loadtxt(options.data, delimiter=",", dtype=np.float32)
images = torch.from_numpy(table[:, :64] / 16).reshape(-1, 1, 8, 8)
labels = torch.from_numpy(table[:, 64].astype(np.int64))
train_set = TensorDataset(images[:1500], labels[:1500])
test_set = TensorDataset(images[1500:], labels[1500:])

loader = hvd.ElasticDataLoader(train_set, batch_size=options.batch_size, shuffle=True, seed=0)

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.BatchNorm2d(16),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Dropout(0.2),
    torch.nn.Linear(256, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
optimizer = hvd.Optimizer(optimizer, model=model)


def train(state):
    model.train()
    while loader.shards.epochs_done < options.epochs:
        for image, label in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(image.to(device)), label.to(device))
            loss.backward()
            optimizer.step()
            time.sleep(options.step_time)
            if state.batch % 20 == 0 and hvd.rank() == 0:
                print(f"epoch {hvd.epoch()} batch {state.batch} size {hvd.size()} loss {loss.item():.3f}", flush=True)
            if hvd.notify_batch_end():
                state.batch += 1


def test():
    model.eval()
    right = sum((model(image.to(device)).argmax(1) == label.to(device)).sum().item() for image, label in test_loader)
    print(f"accuracy {right / len(test_set):.3f}", flush=True)


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = options.lr * hvd.size()


test_loader = DataLoader(test_set, batch_size=100)
state = hvd.register(batch=0)
hvd.on_resize(lambda *_: on_state_reset())
train(state)
if hvd.rank() == 0:
    test()
