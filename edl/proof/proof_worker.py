"""A worker of the job that `edl prove` measures: a small model of PyTorch, which notes each of its steps.

    FOLDER DEVICE STEP_MS [CLOCK_S]

FOLDER is where the notes go, and where the measuring process says after how many epochs the job is to end. DEVICE is
`cpu` or `cuda`. A step sleeps STEP_MS besides, as the rest of a larger model would take it. CLOCK_S is added to the
clock of a host that is not the measuring process's own.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import edl.torch as edl
from edl.proof.step_figures import StepNotes, until

SAMPLES, BATCH, WIDTH, CLASSES = 4096, 32, 256, 10


class ProofTask:
    """A classifier of random samples, with its optimizer: equal on each worker."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        hidden = [layer for _ in range(3) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
        self._model = torch.nn.Sequential(*hidden, torch.nn.Linear(WIDTH, CLASSES)).to(device)
        sgd = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._optimizer = edl.Optimizer(sgd, model=self._model)
        self._inputs = torch.randn(SAMPLES, WIDTH).to(device)
        self._labels = torch.randint(CLASSES, (SAMPLES,)).to(device)

    def train(self, ids: np.ndarray[Any, Any]) -> None:
        self._optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(self._model(self._inputs[ids]), self._labels[ids])
        loss.backward()
        self._optimizer.step()

    def weights(self) -> list[np.ndarray[Any, Any]]:
        slots = [slot["momentum_buffer"] for slot in self._optimizer.state.values()]
        return [tensor.detach().cpu().numpy() for tensor in (*self._model.parameters(), *slots)]


def chosen_device(name: str) -> torch.device:
    """Return this worker's device; workers share GPUs where there are fewer GPUs than workers."""
    if name != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", edl.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def main(words: list[str]) -> None:
    folder, device, step_ms = Path(words[0]), words[1], float(words[2])
    notes = StepNotes(folder, float(words[3]) if len(words) > 3 else 0.0)
    torch.set_num_threads(1)
    edl.init()
    task = ProofTask(chosen_device(device))
    shards = edl.elastic_shard_generator(SAMPLES, shuffle=True)
    generation, ring_began, first_in_ring, wanted = edl.generation(), notes.now(), True, 2**31
    while shards.epochs_done < wanted:
        for ids in shards.batches(BATCH):
            if edl.generation() != generation:
                generation, ring_began = edl.generation(), notes.now()
            rank, size, step, epoch, rehearsing = edl.rank(), edl.size(), edl.step(), edl.epoch(), edl.rehearsing()
            time.sleep(step_ms / 1000)
            task.train(ids)
            if edl.notify_batch_end():
                notes.note("step", step=step, epoch=epoch, size=edl.size(), ring=[rank, size, ring_began])
            elif not rehearsing:
                notes.note("void")
            enters = edl.generation() != generation
            if first_in_ring and not enters:
                notes.state("switch", edl, task)
            first_in_ring = enters
        wanted = min(wanted, until(folder, "epochs"))
    notes.state("end", edl, task)


if __name__ == "__main__":
    main(sys.argv[1:])
