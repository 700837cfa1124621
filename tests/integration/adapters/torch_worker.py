"""A torch worker for `tests/integration/test_ring_torch.py`. Arguments: worker id, kind of optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import horovod.torch as hvd
import torch

sys.path.insert(0, str(Path(__file__).parent))

from seat import FakeTrainer, serve
from torch_values import Registered

from edl.torch.framework import TorchFramework

torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[1][1:]))  # each worker starts from weights of its own

KINDS: dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "clipped": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=5),
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
framework = TorchFramework()
model = Net().eval()
optimizer = KINDS[sys.argv[2]](model.parameters())
framework.wrap(trainer, optimizer, model, None)
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
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return trainer.take_error()


def gradient(x: list[list[float]], y: list[float]) -> list[float]:
    """That of the global batch, as one step applies it."""
    assert train(x, y) == ""
    return torch.cat([parameter.grad.reshape(-1).double() for parameter in model.parameters()]).tolist()


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


def disturb() -> None:
    """What a rehearsal leaves behind."""
    model.norm.running_mean += 3
    optimizer.param_groups[0]["lr"] = 123.0
    train([[1.0] * 6], [1.0])


def hosts() -> list[int]:
    return [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]


commands = {
    "train": train,
    "gradient": gradient,
    "weights": weights,
    "slots": slots,
    "disturb": disturb,
    "pump": pump,
    "hosts": hosts,
}
serve(framework, commands, registered.values())
