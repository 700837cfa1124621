"""A script that does beside its training what scripts do: processes, signals, exits, exceptions, evaluations.

Each scene comes after a step of its own, and returns what it has seen. `--plain`: the same without edl, in one process.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import task
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--plain", action="store_true")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
WAIT_S = 60
EPOCHS = 2
fork = multiprocessing.get_context("fork")
signals: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
torch.manual_seed(1)
model: Any = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
edl: Any = None if options.plain else importlib.import_module("edl.torch")
if edl is not None:
    edl.init()
    optimizer = edl.Optimizer(optimizer, model=model)


def batches() -> Iterator[Any]:
    if options.plain:
        for _ in range(EPOCHS):
            yield from (range(at, min(at + 4, task.SAMPLES)) for at in range(0, task.SAMPLES, 4))
    else:
        yield from edl.elastic_shard_generator(task.SAMPLES, epochs=EPOCHS).batches(4)


def loss_of(ids: Any) -> torch.Tensor:
    ids = list(ids)
    return torch.nn.functional.mse_loss(model(inputs[ids]), targets[ids])


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked(act: Callable[[], object]) -> int:
    """How a child ends that does so."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        act()
        sys.exit()
    return ended(child)


def sleeps(_: int = 0) -> None:
    time.sleep(WAIT_S)


def squared(number: int) -> int:
    return number**2


# ----------------------------------------------------------------------------------------------------- the scenes


def exits_of_children() -> list[int]:
    def fails() -> None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - its traceback is of no use
        raise OSError("full")

    acts: list[Callable[[], object]] = [lambda: None, lambda: sys.exit(3), fails, lambda: os._exit(4)]
    return [forked(act) for act in acts]


def children_that_are_killed() -> list[int | None]:
    child = fork.Process(target=sleeps)
    child.start()
    child.terminate()
    child.join(WAIT_S / 2)
    return [child.exitcode, forked(lambda: os.kill(os.getpid(), signal.SIGTERM))]


def pools() -> list[Any]:
    began = time.monotonic()
    with fork.Pool(2) as pool:
        found = pool.map(squared, range(5))
    with fork.Pool(2) as pool:
        pool.map_async(sleeps, range(4))
    return [found, time.monotonic() - began < WAIT_S / 2]


def other_programs() -> list[Any]:
    said = subprocess.run(
        [sys.executable, "-c", "print('hello'); raise SystemExit(5)"], capture_output=True, check=False
    )
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({WAIT_S})"])
    child.terminate()
    return [said.stdout.decode(), said.returncode, child.wait(WAIT_S / 2)]


def ends_of_children() -> str:
    """What the script has registered for its end is done in a child that ends by itself."""
    reader, writer = os.pipe()
    tell = atexit.register(lambda: os.write(writer, b"its own"))
    forked(lambda: None)
    atexit.unregister(tell)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def handlers() -> list[Any]:
    def note(number: int, _: Any) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGTERM, note)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(WAIT_S)
    except KeyboardInterrupt:
        signals.append(signal.SIGINT)
    signal.signal(signal.SIGTERM, before)
    return sorted(signals)


def children_that_compute() -> list[Any]:
    """A copy of the model is a child's own: gradients and updates."""
    with torch.no_grad():
        want = model[2].weight.clone()
    own = torch.autograd.grad(loss_of(range(4)), list(model.parameters()))
    optimizer.zero_grad()

    def train() -> None:
        loss_of(range(4)).backward()
        same = all(torch.equal(one, parameter.grad) for one, parameter in zip(own, model.parameters(), strict=True))
        optimizer.step()
        sys.exit(7 if same and not torch.equal(model[2].weight, want) else 8)

    return [forked(train), torch.equal(model[2].weight, want)]


def exceptions() -> list[str]:
    """Caught on all workers alike, before a backward pass and after it."""
    caught = []
    for act in (lambda: loss_of([task.SAMPLES]), lambda: loss_of(range(4)).backward(torch.ones(9)), lambda: 1 / 0):
        try:
            act()
        except (RuntimeError, IndexError, ZeroDivisionError) as error:
            caught.append(type(error).__name__)
    optimizer.zero_grad()
    return caught


def threads() -> list[int]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(forked(lambda: os._exit(6))))
    thread.start()
    thread.join(WAIT_S / 2)
    return found


def evaluations() -> float:
    """Between two steps, wherever."""

    def sums(ids: Any) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float(loss_of(ids)) * len(ids), "count": len(ids)}

    found: dict[str, Any] = sums(range(40)) if options.plain else edl.evaluate(sums, 40, 7)
    return round(float(found["loss"] / found["count"]), 4)


SCENES = [
    exits_of_children,
    children_that_are_killed,
    pools,
    other_programs,
    ends_of_children,
    handlers,
    children_that_compute,
    exceptions,
    threads,
    evaluations,
]


def calls_in_children() -> list[Any]:
    """Of edl's API: what needs the job is refused in one line, what was known at the fork is told."""
    reader, writer = os.pipe()

    def asks() -> None:
        said: list[Any] = [edl.rank() == rank, edl.size() == size, edl.step() == step]
        for call in (edl.notify_batch_end, lambda: edl.evaluate(len, 4, 2), edl.init, lambda: edl.report(loss=1.0)):
            with contextlib.suppress(edl.errors.UsageError):
                call()
                said.append(call)  # which JSON refuses
        try:
            edl.notify_batch_end()
        except edl.errors.UsageError as error:
            said.append(str(error))
        edl.shutdown()
        os.write(writer, json.dumps(said).encode())

    rank, size, step = edl.rank(), edl.size(), edl.step()
    status = forked(asks)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return [status, edl.step() == step, json.loads(pipe.read())]


seen: dict[str, Any] = {}
step = 0
for ids in batches():
    optimizer.zero_grad()
    loss_of(ids).backward()
    optimizer.step()
    if options.plain or edl.notify_batch_end():
        step += 1
        if step <= len(SCENES):
            scene = SCENES[step - 1]
            seen[scene.__name__] = scene()
if not options.plain:
    seen["calls_in_children"] = calls_in_children()
seen["weights"] = [tensor.tolist() for tensor in model.state_dict().values()]
(options.out / f"seen-{os.getpid()}.json").write_text(json.dumps(seen))
