"""PyTorch's plain loop."""

from typing import Any

import task
import torch

options = task.options()
torch.set_num_threads(1)
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
model: Any = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
with torch.no_grad():
    for layer, (weight, bias) in ((model[0], task.FIRST), (model[2], task.SECOND)):
        layer.weight.copy_(torch.from_numpy(weight.T))
        layer.bias.copy_(torch.from_numpy(bias))
optimizer = torch.optim.SGD(model.parameters(), lr=task.RATE, momentum=task.MOMENTUM)


def train(ids) -> None:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs[ids]), targets[ids]).backward()
    optimizer.step()


if options.replay:
    steps = task.global_batches(options.replay)
    for together in steps:
        train(together)
    rank = 0
else:
    import edl.torch as edl

    edl.init()
    optimizer = edl.Optimizer(optimizer, model=model)
    rank, steps = edl.rank(), []
    for ids in edl.elastic_shard_generator(task.SAMPLES, epochs=task.EPOCHS, shuffle=True).batches(task.BATCH):
        train(ids)
        assert edl.notify_batch_end()
        steps.append(ids.tolist())
task.save(options.out, rank, steps, [tensor.detach().numpy() for tensor in model.parameters()])
