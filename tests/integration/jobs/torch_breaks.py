"""Scripts of PyTorch that leave their passes by `break`, at unequal pace, with a schedule that goes by passes."""

import time
from typing import Any

import path
import task
import torch
from torch.nn import functional

import edl.torch as edl

options = path.parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
edl.init()
STEPS = 5
samples = torch.utils.data.TensorDataset(torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS))


class Training:
    """What all of them have in common."""

    def __init__(self, *, prepared: bool) -> None:
        self.model: Any = torch.nn.Linear(8, 1)
        self.loader: Any
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if prepared:
            plain = torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True)
            self.model, self.optimizer, self.loader = edl.prepare(self.model, self.optimizer, plain)
        else:
            self.optimizer = edl.Optimizer(self.optimizer, model=self.model)
            self.loader = edl.ElasticDataLoader(samples, 8, shuffle=True)
        path.tell_of_switches(edl, options.out, self.weights)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.99)
        self.count = edl.register(schedule=self.schedule, passes=0, made=0)

    def weights(self) -> list[Any]:
        return [one.detach().numpy() for one in self.model.parameters()]

    def train(self, rows: torch.Tensor, wanted: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        functional.mse_loss(self.model(rows), wanted).backward()
        self.optimizer.step()
        path.pause(options)

    def end_pass(self) -> None:
        """Each worker at a pace of its own."""
        time.sleep(0.05 * edl.rank())
        self.schedule.step()
        self.count.passes += 1


def counted() -> Training:
    """In a variable of its own, of which a newcomer knows nothing."""
    training = Training(prepared=False)
    shards = training.loader.shards
    while shards.epochs_done < path.epochs_wanted(options):
        made = 0
        for rows, wanted in training.loader:
            training.train(rows, wanted)
            made += edl.notify_batch_end()
            if made == STEPS:
                break
        assert edl.epoch() == shards.epochs_done
        training.end_pass()
    return training


def registered() -> Training:
    """In a value that newcomers get."""
    training = Training(prepared=True)
    for epoch in training.loader.epochs(2**31):
        if epoch >= path.epochs_wanted(options):
            break
        for rows, wanted in training.loader:
            training.train(rows, wanted)
            training.count.made += 1
            if training.count.made >= STEPS:
                break
        training.count.made = 0
        training.end_pass()
    return training


def dry() -> Training:
    """One mini-batch of each pass."""
    training = Training(prepared=True)
    for epoch in training.loader.epochs(2**31):
        if epoch >= path.epochs_wanted(options):
            break
        for rows, wanted in training.loader:
            training.train(rows, wanted)
            break
        training.end_pass()
    return training


ended = {"counted": counted, "registered": registered, "dry": dry}[options.way]()
state = [path.digest(ended.weights()), ended.optimizer.param_groups[0]["lr"]]
path.finish(options.out, {"state": state, "batches": ended.count.passes, "rank": edl.rank(), "step": edl.step()})
