"""One worker of tests/soaks/preempt.py: digits are learnt, and each phase is told as it begins.

What a life acts out beside training, an evaluation or a compilation that takes long and the like, is in its plan.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PLAN, NOW, END = "plan.json", "now", "epochs"  # in the folder of the benchmark
BATCH = 16
AFTER = 12  # steps of a life, before what it acts out
LOADED_AHEAD = 2  # batches, by the process that loads


class Told:
    """What this worker is at, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NOW / str(os.getpid())

    def __call__(self, phase: str) -> None:
        self._path.write_text(phase)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self(phase)
        yield
        self("training")


class Rows:
    """The digits. Once in this life they make the script wait, if that is what it acts out."""

    def __init__(self, plan: dict[str, Any]) -> None:
        from benchmarks.worker import digits

        self.images, self.labels = digits()
        self._seconds = plan["seconds"]
        self._left = AFTER * BATCH if plan["phase"] == "waiting" else 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Any:
        self._left -= 1
        if self._left == 0:
            time.sleep(self._seconds)
        return self.images[number], self.labels[number]


class Acting:
    """What a life acts out beside training, and telling of it. `steps`: those that this worker has made."""

    def __init__(self, told: Told, plan: dict[str, Any], edl: Any, evaluate: Callable[[], None]) -> None:
        self._told, self._edl, self._evaluate = told, edl, evaluate
        self._phase, self._seconds = plan["phase"], plan["seconds"]

    def before_data(self, steps: int) -> None:
        if self._phase == "waiting" and steps == AFTER - LOADED_AHEAD:
            self._told("waiting")

    def before_step(self, steps: int) -> None:
        if self._phase == "waiting" and steps == AFTER + LOADED_AHEAD:
            self._told("training")
        if self._edl.rehearsing():
            with self._told.during("rehearsal"):
                time.sleep(self._seconds if self._phase == "rehearsal" else 0)
        if self._phase == "compile" and steps == 0:
            with self._told.during("compile"):
                self._hold_the_interpreter()

    def after_step(self, steps: int) -> None:
        if steps != AFTER or self._phase == "waiting":
            return
        self._told("training")
        if self._phase == "evaluation":
            with self._told.during("evaluation"):
                until = time.monotonic() + self._seconds
                while time.monotonic() < until:
                    self._evaluate()

    def _hold_the_interpreter(self) -> None:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-time", type=float, default=0.03)
    parser.add_argument("--mb", type=float, required=True)
    options = parser.parse_args()
    told = Told(options.folder)
    told("boot")
    plan = json.loads((options.folder / PLAN).read_text())
    import torch

    import edl.torch as edl

    edl.init()
    told("first ring")
    torch.set_num_threads(1)
    torch.manual_seed(edl.rank())
    rows: Any = Rows(plan)
    images = torch.from_numpy(rows.images)
    layers = [torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 10), padded(options.mb)]
    model = torch.nn.Sequential(*layers)
    optimizer: Any = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            model(images)
        model.train()
        time.sleep(0.01)

    acting = Acting(told, plan, edl, evaluate)
    loader: Any = edl.ElasticDataLoader(rows, BATCH, True, num_workers=1)
    until, steps = options.folder / END, 0
    while not until.exists() or loader.shards.epochs_done < int(until.read_text()):
        batches = iter(loader)
        acting.before_data(steps)
        while (batch := next(batches, None)) is not None:
            acting.before_step(steps)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
            time.sleep(options.step_time)
            edl.notify_batch_end()
            steps += 1
            acting.after_step(steps)
            acting.before_data(steps)


def padded(mb: float) -> Any:
    """A layer that changes nothing, of so many megabytes."""
    import torch

    class Padding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rest = torch.nn.Parameter(torch.zeros(int(mb * 250_000)))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values + 0 * self.rest.sum()

    return Padding()


if __name__ == "__main__":
    main()
