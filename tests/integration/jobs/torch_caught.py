"""PyTorch whose script catches an exception in the midst of a mini-batch: on one worker alone, or on all.

EDL_TEST_WAY: `before`, `within` or `after` backward() on rank 1, once in a mini-batch; `again`, as often as that comes;
`all`, on each worker; or `fourth`, where a script makes its updates in each fourth mini-batch alone.
"""

import os
from typing import Any

import task
import torch

WAY = os.environ["EDL_TEST_WAY"]
options = task.options()
torch.set_num_threads(1)
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
with torch.no_grad():
    for parameter, value in zip(model.parameters(), (*task.FIRST, *task.SECOND), strict=True):
        parameter.copy_(torch.from_numpy(value.T))
optimizer = torch.optim.Adam(model.parameters(), lr=task.RATE)


def is_bad(where: str, step: int, tries: int, rank: int) -> bool:
    """The script comes upon an exception there."""
    if WAY == "fourth":
        return where == "before" and step % 4 != 0
    if WAY == "all":
        return where == "before" and step in {4, 10}
    if WAY == "again":
        return where == "before" and rank == 1 and step == 10
    return (
        where == WAY and rank == 1 and tries == 1 and step == (4 if where == "within" else 10)
    )  # before updates are due


def fail(_gradient: Any) -> None:
    raise RuntimeError("out of memory")


def train(ids: Any, step: int, tries: int = 1, rank: int = 0) -> None:
    optimizer.zero_grad()
    try:
        hidden = model[:2](inputs[ids])
        loss = (model[2](hidden) - targets[ids]).square().mean()
        if is_bad("before", step, tries, rank):
            raise RuntimeError("out of memory")
        if is_bad("within", step, tries, rank):
            hidden.register_hook(fail)  # the last layer's gradients are on their way by then
        loss.backward()
        if is_bad("after", step, tries, rank):
            raise RuntimeError("out of memory")
        optimizer.step()
    except RuntimeError:
        pass


if options.replay:
    rank, steps = 0, task.global_batches(options.replay)
    for step, chosen in enumerate(steps, 1):
        train(chosen, step)
else:
    import edl.torch as edl

    edl.init()
    optimizer = edl.Optimizer(optimizer, model=model)
    rank, steps, tries = edl.rank(), [], dict[int, int]()
    for ids in edl.elastic_shard_generator(task.SAMPLES, epochs=task.EPOCHS, shuffle=True).batches(task.BATCH):
        step = edl.step()
        tries[step] = tries.get(step, 0) + 1
        train(ids, step, tries[step], edl.rank())
        if edl.notify_batch_end():
            steps.append(ids.tolist())
task.save(options.out, rank, steps, [parameter.detach().numpy().T for parameter in model.parameters()])
