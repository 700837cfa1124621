"""Step time of PyTorch on edl's two rings, beside plain Horovod and DistributedDataParallel, in the same processes.

    python -m benchmarks.ring_step [--rounds N] [--workers N] [--model mlp|large|both] [--device cpu|cuda] [--apart]
                                   [--without-horovod]

In each round the same processes train the same model in turns: in a ring of Horovod by edl and by Horovod's own
optimizer, then without that ring, which polls while it stands, by edl in torch's process groups and by
DistributedDataParallel, also over gloo. Two that are compared directly take turns step by step, who is first changes,
and a barrier stands before each step. On GPUs a step is over when the GPU is through, and both rings and
DistributedDataParallel go by NCCL, if each worker has a GPU of its own, or all count as such (`--apart`); else
DistributedDataParallel and edl's own ring go by gloo. Printed: the median step of each way, CPU per step, and medians
over rounds of the ratios of each round, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.adapter_overhead import NoTrainer
from benchmarks.pause_worker import APART, DEVICE, choose_device, torch_device
from edl.protocol.ring import Place
from edl.testing.gathering import Gathering

MODELS = {"mlp": (256, 6, 32, 40), "large": (2048, 6, 8, 8)}  # width, layers, samples, steps of a turn
WARM = 3  # steps that are not counted, at the beginning of a turn
OURS, GROUPS, THEIRS, DDP = "edl --ring horovod", "edl --ring torch", "Horovod", "DDP"
RATIOS = ((OURS, THEIRS), (GROUPS, DDP), (GROUPS, THEIRS), (DDP, THEIRS))


class Way:
    """One way of training the model."""

    def __init__(self, model: Any, module: Any, optimizer: Any, inputs: Any) -> None:
        self.model = model
        self._module = module
        self._optimizer = optimizer
        self._inputs = inputs
        self._on_gpu = inputs.is_cuda

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._module(self._inputs).pow(2).mean().backward()
        self._optimizer.step()
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()


class Worker:
    """Of one rank: all four ways, and two rings of edl's."""

    def __init__(self, name: str, rank: int, size: int, store: str, *, horovod: bool) -> None:
        import torch
        import torch.distributed as dist

        from edl.torch.framework import TorchFramework
        from edl.torch.group_ring import GroupRing

        torch.set_num_threads(1)
        self.width, self.layers, self.samples, self.steps = MODELS[name]
        self.frameworks = {GROUPS: TorchFramework()}
        self.frameworks[GROUPS].ring = GroupRing(self.frameworks[GROUPS].gpu)
        if horovod:
            from edl.torch.horovod_ring import TorchHorovodRing

            self.frameworks[OURS] = TorchFramework()
            self.frameworks[OURS].ring = TorchHorovodRing()
        self.device = torch_device(rank)
        has_own = os.environ.get(APART) or torch.cuda.device_count() >= size
        backend = "nccl" if self.device.type == "cuda" and has_own else "gloo"
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
        self.group = dist.new_group(backend=backend)
        self.barrier = dist.barrier
        inputs = torch.randn(self.samples, self.width, generator=torch.Generator().manual_seed(rank))
        self.inputs = inputs.to(self.device)

    def way(self, name: str) -> Way:
        """Horovod's are built where its ring stands."""
        import torch

        torch.manual_seed(0)
        hidden = [layer for _ in range(self.layers) for layer in self._layer()]
        model = torch.nn.Sequential(*hidden, torch.nn.Linear(self.width, 1)).to(self.device)
        module: Any = model
        if name == DDP:
            module = torch.nn.parallel.DistributedDataParallel(model, process_group=self.group)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        if name in self.frameworks:
            self.frameworks[name].wrap(NoTrainer(), optimizer, model, None)
        elif name == THEIRS:
            import horovod.torch as hvd

            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        return Way(model, module, optimizer, self.inputs)

    def _layer(self) -> list[Any]:
        import torch

        return [torch.nn.Linear(self.width, self.width), torch.nn.ReLU()]

    def turn(self, first: str, second: str, ways: dict[str, Way]) -> dict[str, tuple[float, float]]:
        """Seconds and CPU seconds of a step of each."""
        spent: dict[str, list[tuple[float, float]]] = {first: [], second: []}
        for number in range(WARM + self.steps):
            for name in (first, second) if number % 2 else (second, first):
                self.barrier()
                began, cpu = time.perf_counter(), time.process_time()
                ways[name].step()
                if number >= WARM:
                    spent[name].append((time.perf_counter() - began, time.process_time() - cpu))
        return {
            name: (statistics.median(one[0] for one in those), statistics.fmean(one[1] for one in those))
            for name, those in spent.items()
        }


def work(name: str, rank: int, store: str, rounds: int, *, horovod: bool) -> None:
    """Of one process. Places come in, one for each ring, and what was measured goes out."""
    choose_device()
    places = iter(lambda: msgspec.json.decode(sys.stdin.readline(), type=Place), None)
    place = next(places)
    worker = Worker(name, rank, place.size, store, horovod=horovod)
    ways = {GROUPS: worker.way(GROUPS), DDP: worker.way(DDP)}  # a ring asks as it forms where the gradients lie
    worker.frameworks[GROUPS].ring.enter(place, 60.0)
    found = []
    for number in range(rounds):
        measured = {}
        if horovod:
            known = worker.frameworks[OURS].ring
            known.enter(next(places), 60.0)
            if not number:
                ways |= {OURS: worker.way(OURS), THEIRS: worker.way(THEIRS)}
            measured = worker.turn(OURS, THEIRS, ways)
            worker.barrier()
            known.leave()
        found.append(measured | worker.turn(GROUPS, DDP, ways))
    print(json.dumps([found, distances(ways), sum(one.numel() for one in ways[DDP].model.parameters())]), flush=True)
    worker.barrier()
    os._exit(0)  # the rings need no farewell


def distances(ways: dict[str, Way]) -> float:
    """How far the models have come apart, which all began alike and saw the same samples."""
    import torch

    first, *others = (torch.nn.utils.parameters_to_vector(way.model.parameters()).detach() for way in ways.values())
    return max(float((first - other).abs().max()) for other in others)


async def measure(name: str, size: int, rounds: int, *more: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.ring_step", "--work", name, str(rank), str(Path(folder) / "store")),
                *("--rounds", str(rounds)),
                *more,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 24,
            )
            for rank in range(size)
        ]
        gatherings = [Gathering([f"w{rank}" for rank in range(size)], number + 1) for number in range(rounds + 1)]
        for gathering in gatherings:
            for worker, place in zip(workers, await gathering.open(), strict=True):
                assert worker.stdin is not None
                worker.stdin.write(msgspec.json.encode(place) + b"\n")
        lines = await asyncio.gather(*(worker.stdout.readline() for worker in workers if worker.stdout is not None))
        await asyncio.gather(*(worker.wait() for worker in workers))
        for gathering in gatherings:
            await gathering.stop()
    show(name, size, [json.loads(line) for line in lines])


def show(name: str, size: int, told: list[Any]) -> None:
    """The slowest worker's steps count: the others wait for it."""
    rounds = [
        {way: max(found[way][0] for found in those) for way in those[0]}
        for those in zip(*(one[0] for one in told), strict=True)
    ]
    cpu = {way: statistics.median(found[way][1] for one in told for found in one[0]) for way in rounds[0]}
    print(f"{name}: {told[0][2]} parameters, {size} workers, {len(rounds)} rounds; models apart by {told[0][1]:.1e}")
    for way in (way for way in (THEIRS, OURS, DDP, GROUPS) if way in rounds[0]):
        times = sorted(1e3 * one[way] for one in rounds)
        print(
            f"  {way:<20} {statistics.median(times):8.2f} ms a step [{times[0]:.2f}-{times[-1]:.2f}], "
            f"{1e3 * cpu[way]:8.2f} ms of CPU"
        )
    for mine, theirs in RATIOS:
        if not {mine, theirs} <= rounds[0].keys():
            continue
        ratios = sorted(one[mine] / one[theirs] for one in rounds)
        print(
            f"  {mine + ' / ' + theirs:<40} {statistics.median(ratios):.3f} [{ratios[0]:.3f}-{ratios[-1]:.3f}]",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", nargs=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=[*MODELS, "both"], default="both")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--apart", action="store_true", help="workers share a GPU as if each were of another host")
    parser.add_argument("--without-horovod", action="store_true")
    given = parser.parse_args()
    if given.work:
        name, rank, store = given.work
        work(name, int(rank), store, given.rounds, horovod=not given.without_horovod)
        return
    os.environ.update({DEVICE: given.device, APART: "1" if given.apart else ""})
    more = ["--without-horovod"] if given.without_horovod else []
    wanted: Callable[[str], bool] = lambda name: given.model in {name, "both"}  # noqa: E731
    for name in filter(wanted, MODELS):
        asyncio.run(measure(name, given.workers, given.rounds, *more))


if __name__ == "__main__":
    main()
