"""A torch worker for `tests/integration/test_ring_torch.py`. Arguments: worker id, kind of optimizer; EDL_RING."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))

import torch_collectives
from seat import FakeTrainer, serve
from torch_values import Registered

import edl.torch as hvd
from edl import background
from edl.torch.torch_process import framework
from edl.torch.torch_reducer import Manner

torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[1][1:]))  # each worker starts from weights of its own

KINDS: dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "clipped": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=5),
    "passes": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, amsgrad=True),
}


class Net(torch.nn.Module):
    """Two layers, batch norm for its buffers, and a branch that only some batches take."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8, momentum=0.5)
        self.second = torch.nn.Linear(8, 1)
        self.branch = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, use_branch: bool) -> torch.Tensor:
        # Batch norm in inference mode: otherwise the mean of the workers' gradients is not that of the global batch.
        hidden = torch.tanh(self.norm(self.first(x)))
        return self.second(hidden) + (self.branch(hidden) if use_branch else 0.0)


trainer = FakeTrainer()
model = Net().eval()
optimizer: Any = KINDS[sys.argv[2]](model.parameters())
framework.wrap(trainer, optimizer, model, None, Manner(2 if sys.argv[2] == "passes" else 1, zeros=True))
registered = Registered(int(sys.argv[1][1:]) + 1)


def train(x: list[list[float]], y: list[float], use_branch: bool = True) -> str:
    """One step. The loss is the mean over this worker's samples, as in any script."""

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        if not x:
            return torch.tensor(float("nan"))
        loss = (model(torch.tensor(x), use_branch).squeeze(1) - torch.tensor(y)).pow(2).mean()
        loss.backward()
        return loss.detach()

    if sys.argv[2] == "lbfgs":
        optimizer.step(compute)
        return trainer.take_error()
    compute()
    if sys.argv[2] == "clipped":
        if not x:
            optimizer.synchronize()  # there was no backward() here
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
    optimizer.step()
    return trainer.take_error()


def loss_of(x: list[list[float]], y: list[float], part: float = 1.0) -> torch.Tensor:
    return part * (model(torch.tensor(x), True).squeeze(1) - torch.tensor(y)).pow(2).mean()


def checkpointed(x: list[list[float]], y: list[float]) -> torch.Tensor:
    """All of the model is inside: no gradient comes from the outer backward."""
    rows = torch.tensor(x).requires_grad_()
    out = checkpoint(lambda tensor: model(tensor, True), rows, use_reentrant=True)
    return (out.squeeze(1) - torch.tensor(y)).pow(2).mean()


def twice(x: list[list[float]], y: list[float], pause: Callable[[], AbstractContextManager[None]]) -> None:
    with pause():
        loss_of(x, y, 0.25).backward()
    loss_of(x, y, 0.75).backward()


WAYS: dict[str, Callable[[list[list[float]], list[float]], None]] = {
    "plain": lambda x, y: loss_of(x, y).backward(),
    "twice": lambda x, y: twice(x, y, nullcontext),
    "no_sync": lambda x, y: twice(x, y, optimizer.no_sync),
    "create_graph": lambda x, y: loss_of(x, y).backward(create_graph=True),
    "checkpointed": lambda x, y: checkpointed(x, y).backward(),
}


def backward(way: str, x: list[list[float]], y: list[float]) -> list[float]:
    """The gradient that a script sees when backward() has returned."""
    optimizer.zero_grad()
    WAYS[way](x, y)
    found = torch.cat([parameter.grad.detach().reshape(-1).double() for parameter in model.parameters()]).tolist()
    optimizer.step()
    return found


def parts(parts: list[tuple[list[list[float]], list[float], float]]) -> list[float]:
    """A mini-batch in parts, and a collective of the script's own before the update."""
    optimizer.zero_grad()
    for x, y, share in parts:
        loss_of(x, y, share).backward()
    hvd.allreduce(torch.tensor(1.0), name="the script's")
    optimizer.step()
    return weights()


def gradient(x: list[list[float]], y: list[float]) -> list[float]:
    """That of the global batch, as one step applies it."""
    assert train(x, y) == ""
    return torch.cat([parameter.grad.reshape(-1).double() for parameter in model.parameters()]).tolist()


def noise(x: list[list[float]], y: list[float]) -> list[Any]:
    """One step in which it is measured: this worker's own gradient, and what came of it."""
    wanted = list(model.parameters())
    own = torch.autograd.grad(loss_of(x, y), wanted) if x else [torch.zeros_like(one) for one in wanted]
    framework.expect_noise(due=True)
    assert train(x, y) == ""
    framework.expect_noise(due=False)
    return [torch.cat([one.reshape(-1).double() for one in own]).tolist(), framework.take_noise()]


def weights() -> list[float]:
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in model.state_dict().values()]).tolist()


def slots() -> str:
    """All of the optimizer's state, comparable as text, and what was registered."""
    return str(optimizer.state_dict()) + registered.shown()


def pump() -> str:
    """Large all-reduces until one fails."""
    tensor = torch.ones(4_000_000)
    try:
        while True:
            hvd.allreduce_(tensor, name="pump", op=hvd.Average)
    except hvd.HorovodInternalError as error:
        return f"{framework.ring.is_failure(error)} {error}"


def sums() -> list[float]:
    """Of three tensors that are there at once, the middle one of 2 MB."""
    tensors = [torch.ones(size) for size in (1, 500_000, 1)]
    handles = [hvd.allreduce_async_(one, name=f"sums.{i}", op=hvd.Sum) for i, one in enumerate(tensors)]
    return [hvd.synchronize(handle).mean().item() for handle in handles]


def disturb() -> None:
    """What a rehearsal leaves behind."""
    model.norm.running_mean.add_(3)
    optimizer.param_groups[0]["lr"] = 123.0
    train([[1.0] * 6], [1.0])


def hosts() -> list[int]:
    return [framework.ring.place.local_rank, hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]


def collectives() -> list[list[str]]:
    place = framework.ring.place
    return torch_collectives.all_of_them(place.rank, place.size)


def ask_beside(first: bool) -> list[Any]:
    """Of the ring, on a thread, whether all say the same: before a collective of the script's own, or after it."""

    def asked() -> Callable[[], bool]:
        return background.begin(lambda: framework.ring.same(7)).result()

    early = asked() if first else None
    handle = hvd.allreduce_async(torch.tensor([float(first)]), name="loss")
    answer = early or asked()
    return [float(hvd.synchronize(handle)), answer()]


commands = {
    "train": train,
    "ask_beside": ask_beside,
    "collectives": collectives,
    "gradient": gradient,
    "backward": backward,
    "noise": noise,
    "parts": parts,
    "weights": weights,
    "slots": slots,
    "disturb": disturb,
    "pump": pump,
    "sums": sums,
    "hosts": hosts,
}
serve(framework, commands, registered.values())
