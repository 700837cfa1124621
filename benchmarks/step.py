"""What a training step costs under edl while nothing changes.

    python -m benchmarks.step overhead [--frameworks torch tensorflow] [--rounds 6] [--steps 400] [--batch 64]
                                       [--control]
    python -m benchmarks.step stock    [--frameworks torch tensorflow] [--rounds 6] [--steps 1000] [--batch 64]
    python -m benchmarks.step rings    [--rounds 12] [--workers 2] [--model mlp|large|both] [--device cpu|cuda]
                                       [--apart] [--without-horovod]
    python -m benchmarks.step torchrun [--turns 30] [--model mlp|large|both] [--ring torch|horovod]
    python -m benchmarks.step adapters [--frameworks torch tensorflow]

`overhead`: each step on `hvd.DistributedOptimizer` (torch) or `hvd.DistributedGradientTape` (TensorFlow) is followed by
one under edl, in the same two processes and the same ring: noise of the machine that lasts longer than a step falls on
both. edl's steps include taking the samples from the generator and `notify_batch_end()`. Both kinds of steps update one
model, in the same memory: the same model elsewhere differs from itself by one or two percent. There are several rounds,
each with processes of its own. Printed for both ranks together: the ratio of the median times of 40 steps of each kind,
as the mean of all rounds with its standard error; the same of the processor time that the two processes took, all
threads, which other work on the machine blurs less; the call of `notify_batch_end()` (in place, with the caches as a
step leaves them; an empty call there beside it); what comparing the workers' states takes at the end of each 100th of
them, and its share of those steps; and the share of a core that each daemon takes, which a host without a core to spare
has to pay too. Goals: a ratio of 1.003, 5 us for the call; exit code 1 beyond 1.01 or 5 us. `--control` has plain
Horovod in the place of edl, so it finds what this way of measuring makes of equal steps.

`stock`: jobs of two workers under `edl run`, and on stock Horovod under `horovodrun`, in turn: what edl does to the
whole process, which two optimizers in one process share, shows here alone. The job of each kind that comes first
changes from round to round. Exit code 1 where the ratio is more than two standard errors above 1.05: a machine that
others use differs from itself by that from job to job.

`rings`: PyTorch on edl's two rings, beside plain Horovod and DistributedDataParallel. In each round the same processes
train the same model in turns: in a ring of Horovod by edl and by Horovod's own optimizer, then without that ring, which
polls while it stands, by edl in torch's process groups and by DistributedDataParallel, also over gloo. Two that are
compared directly take turns step by step, who is first changes, and a barrier stands before each step. On GPUs a step
is over when the GPU is through, and both rings and DistributedDataParallel go by NCCL, if each worker has a GPU of its
own, or all count as such (`--apart`); else DistributedDataParallel and edl's own ring go by gloo. Printed: the median
step of each way, CPU per step, and medians over rounds of the ratios of each round, with the least and the greatest.

`torchrun`: a script of DistributedDataParallel, unchanged, in a job of two workers under torchrun and in one under `edl
torchrun`, which take turns of some steps, while the other one waits; who is first changes. Printed: the median step of
each, from one batch to the next, and the mean and the median of the turns' ratios. Exit code 1 where the mean is more
than two standard errors above 1.01 for the large model.

`adapters`: the optimizers alone, in CPU time, whatever else the machine is doing. What both sides share is left out,
and the model so small that the rest shows. torch: Horovod's calls are replaced by ones that do nothing, in a pretended
ring of two; taken is the CPU time of the training thread. TensorFlow: all of a step, in a ring of two workers, and the
CPU time of the process. Variants take turns; printed is the median per step.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import harness
from benchmarks.harness import Job, Note, edl_run, mean_ratio, program
from benchmarks.worker import APART, BLOCK, DEVICE, EVERY, WARM_UP, choose_device, torch_device
from edl.proof.paired_turns import MODELS as PAIRED
from edl.proof.paired_turns import launches, paired_turns
from edl.protocol.assignment import Place, solo
from edl.trainer.data.sample_ids import Among
from tests.model.address_meeting import Gathering

NOT_DONE, NOTIFY_US = 1.01, 5.0
STOCK_NOT_DONE = 1.05
Row = dict[str, Any]


def job_of(launch: list[str], folder: Path, *words: object) -> Sequence[dict[str, list[Note]]]:
    """What the two ranks of a job that ends by itself have noted."""
    job = Job(folder, [*launch, *harness.worker(folder, "--model", "layers", "--step-ms", 0, *words)])
    job.launcher.wait()
    noted = list(job.notes.read().values())
    if job.launcher.returncode or len(noted) < 2:
        raise SystemExit(f"the job failed:\n{job.log()}")
    return noted


# ------------------------------------------------------------------------------------------------- in one process


def overhead(options: argparse.Namespace) -> tuple[bool, list[Row]]:
    done, rows = True, []
    for framework in options.frameworks:
        words = ["--mode", "pair", "--framework", framework, "--steps", options.steps, "--batch", options.batch]
        words += ["--control"] if options.control else []
        rounds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                noted = job_of(edl_run(2, "overhead"), Path(folder), *words)
                rounds.append([kinds["pair"][0] for kinds in noted])
        result = summary(framework, rounds)
        done = done and result["ratio"] <= NOT_DONE and result["notify_us"] <= NOTIFY_US
        print(json.dumps(result) if options.json else shown(result), flush=True)
        rows.append(
            {
                "framework": framework,
                "rounds": len(rounds),
                "plain, ms": round(result["plain_ms"], 2),
                "edl, ms": round(result["edl_ms"], 2),
                "ratio": round(result["ratio"], 3),
                "standard error": round(result["standard_error"], 3),
                "of processor time": round(result["cpu"]["ratio"], 3),
                "`notify_batch_end()`, µs": round(result["notify_us"], 1),
                "an empty call, µs": round(result["empty_call_us"], 1),
                "a comparison of states (one in 100 steps), ms": round(result["compared_ms"], 1),
            }
        )
    return done, rows


def summary(framework: str, rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    ranks = [rank for of_round in rounds for rank in of_round]
    calls, empty = (np.concatenate([rank[name] for rank in ranks]) for name in ("notify_s", "empty_call_s"))
    compared_s = median(np.concatenate([rank["compared_s"] for rank in ranks]))
    times = compared(rounds, "plain_s", "edl_s")
    return {
        "framework": framework,
        "rounds": len(rounds),
        "steps": len(ranks[0]["plain_s"]),
        **times,
        "cpu": compared(rounds, "plain_cpu_s", "edl_cpu_s"),
        "compared_ms": 1000 * compared_s,
        "compared_share": compared_s / EVERY / times["plain_ms"] * 1000,
        "notify_us": 1e6 * median(calls),
        "empty_call_us": 1e6 * median(empty),
        "daemon_cpu": [float(np.mean([of_round[rank]["daemon_cpu"] for of_round in rounds])) for rank in (0, 1)],
    }


def median(of: np.ndarray) -> float:
    """0 of nothing, where plain Horovod is in the place of edl."""
    return float(np.median(of)) if of.size else 0.0


def compared(rounds: list[list[dict[str, Any]]], plain_name: str, edl_name: str) -> dict[str, Any]:
    """Steps of the two kinds. Each block has one ratio: of its medians over both ranks' steps. What a round has drawn
    by chance, as where its memory lies, is in all of its blocks, so rounds make the error.
    """
    plain, ours = ([np.array([rank[name] for rank in ranks]) for ranks in rounds] for name in (plain_name, edl_name))
    ratios = np.array([of_blocks(before, after).mean() for before, after in zip(plain, ours, strict=True)])
    means = [float(after.mean() / before.mean()) for before, after in zip(plain, ours, strict=True)]
    mean, error = mean_ratio(ratios)
    return {
        "plain_ms": 1000 * float(np.median(plain)),
        "edl_ms": 1000 * float(np.median(ours)),
        "ratios": ratios.tolist(),
        "ratio": mean,
        "standard_error": error,
        "ratio_of_means": float(np.mean(means)),
    }


def of_blocks(plain: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Both arrays: of the ranks, of their steps."""
    parts = [slice(at, at + BLOCK) for at in range(0, plain.shape[1], BLOCK)]
    return np.array([np.median(ours[:, part]) / np.median(plain[:, part]) for part in parts])


def shown(result: dict[str, Any]) -> str:
    rounds = " ".join(f"{ratio:.3f}" for ratio in result["ratios"])
    return (
        f"{result['framework']:<10}  plain {result['plain_ms']:.3f} ms  edl {result['edl_ms']:.3f} ms  "
        f"ratio {result['ratio']:.4f} +- {result['standard_error']:.4f} (by means "
        f"{result['ratio_of_means']:.4f}; of the rounds: {rounds})  "
        f"processor time {result['cpu']['ratio']:.4f} +- {result['cpu']['standard_error']:.4f}  "
        f"notify_batch_end {result['notify_us']:.1f} us (an empty call: {result['empty_call_us']:.1f} us)  "
        f"a comparison {result['compared_ms']:.1f} ms, {100 * result['compared_share']:.2f} % of {EVERY} steps  "
        f"daemons {' and '.join(f'{100 * share:.1f} %' for share in result['daemon_cpu'])} of a core"
    )


# ---------------------------------------------------------------------------------------------------- whole jobs


def stock(options: argparse.Namespace) -> tuple[bool, list[Row]]:
    launches = {"stock": [program("horovodrun"), "-np", "2"], "edl": edl_run(2, "stock")}
    done, rows = True, []
    for framework in options.frameworks:
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in launches}
        for number in range(options.rounds):
            for kind in list(launches)[:: -1 if number % 2 else 1]:
                found[kind].append(of_job(kind, framework, launches[kind], options))
        theirs, ours = (np.array(found[kind]) for kind in launches)
        wall, cpu = (mean_ratio(ours[:, at] / theirs[:, at]) for at in (0, 1))
        done = done and wall[0] - 2 * wall[1] <= STOCK_NOT_DONE
        row = {
            "framework": framework,
            "stock, ms a step": round(float(np.median(theirs[:, 0])), 2),
            "edl, ms a step": round(float(np.median(ours[:, 0])), 2),
            "ratio": round(wall[0], 3),
            "standard error": round(wall[1], 3),
            "of processor time": f"{cpu[0]:.3f} ± {cpu[1]:.3f}",
        }
        rows.append(row)
        told = json.dumps(row) if options.json else "  ".join(f"{name} {value}" for name, value in row.items())
        print(told, flush=True)
    return done, rows


def of_job(kind: str, framework: str, launch: list[str], options: argparse.Namespace) -> tuple[float, float]:
    """The median step of both ranks in ms, and the processor time of one in ms."""
    mode = ["--mode", "plain" if kind == "stock" else "edl", "--no-voidable", "--framework", framework]
    with tempfile.TemporaryDirectory() as folder:
        count = WARM_UP + options.steps
        noted = job_of(launch, Path(folder), *mode, "--steps", count, "--batch", options.batch)
    steps = [kinds["step"][WARM_UP - 1 :] for kinds in noted]
    walls = np.concatenate([np.diff([note["at"] for note in one]) for one in steps])
    cpus = [(one[-1]["cpu"] - one[0]["cpu"]) / (len(one) - 1) for one in steps]
    return 1000 * float(np.median(walls)), 1000 * float(np.mean(cpus))


# --------------------------------------------------------------------------------------------------------- adapters

ADAPTER_ROUNDS, ADAPTER_STEPS, LAYERS, WIDTH = 60, 10, 30, 64


class NoTrainer:
    """The port of the trainer, with nothing behind it."""

    voided = False
    weightless = False
    virtual = 0
    among = Among()
    committed = 0

    def keep_in_step(self) -> None:
        """There is no pipeline."""

    def before_reduce(self) -> None:
        """Nothing to weigh."""

    def before_update(self) -> None:
        """No state is under way."""

    def await_state(self) -> None:
        """None comes."""

    def step(self) -> int:
        return 1

    def waited(self, nanoseconds: int) -> None:
        """It is not asked."""

    def void(self, error: BaseException) -> None:
        raise error

    def void_beside(self, error: BaseException) -> None:
        raise error

    def rank(self) -> int:
        return 0


def torch_adapters() -> tuple[dict[str, Callable[[], None]], Callable[[], float]]:
    import horovod.torch as hvd
    import torch
    from horovod.torch import optimizer as theirs

    from edl.torch.torch_framework import TorchFramework

    torch.set_num_threads(1)
    framework = TorchFramework()
    framework.ring.enter(solo("w0"), 10.0)
    framework.ring.size = 2
    handed: dict[str, Any] = {}

    def start(tensor: Any, name: str, **_: Any) -> str:
        handed[name] = tensor
        return name

    for module in (theirs, hvd):
        module.allreduce_async_ = start
        module.synchronize = handed.pop

    def stepping(wrap: Callable[[Any, Any], Any]) -> Callable[[], None]:
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=1e-6), model)
        inputs = torch.ones(1, WIDTH)

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

        return step

    def elastic(optimizer: Any, model: Any) -> Any:
        framework.wrap(NoTrainer(), optimizer, model, None)
        return optimizer

    return {
        "no reduction": stepping(lambda optimizer, _: optimizer),
        "Horovod": stepping(lambda optimizer, model: hvd.DistributedOptimizer(optimizer, model.named_parameters())),
        "edl": stepping(elastic),
    }, time.thread_time


def tensorflow_adapters(place: Place) -> tuple[dict[str, Callable[[], None]], Callable[[], float]]:
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    from edl.tensorflow.tf_framework import TensorFlowFramework

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    framework = TensorFlowFramework()
    framework.ring.enter(place, 60.0)
    framework.set_weight(0.5)

    def stepping(reduced: Callable[[Any], Any], wrap: Callable[[Any, Any], Any], elastic: str) -> Callable[[], None]:
        model = keras.Sequential([keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH) for _ in range(LAYERS))])
        optimizer = wrap(keras.optimizers.SGD(1e-6), model)
        variables = [variable.value for variable in model.trainable_variables]
        optimizer.build(model.trainable_variables)

        @tf.function(autograph=False)
        def step(inputs: Any) -> None:
            with reduced(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(model(inputs))
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        inputs = tf.ones((1, WIDTH))
        os.environ["HOROVOD_ELASTIC"] = elastic  # Horovod looks at it while it is traced
        step(inputs)
        return lambda: step(inputs)

    def ours(optimizer: Any, model: Any) -> Any:
        framework.wrap(NoTrainer(), optimizer, model)
        return optimizer

    return {
        "no reduction": stepping(lambda tape: tape, lambda optimizer, _: optimizer, "1"),
        "Horovod": stepping(hvd.DistributedGradientTape, lambda optimizer, _: optimizer, "0"),
        "Horovod, HOROVOD_ELASTIC=1": stepping(hvd.DistributedGradientTape, lambda optimizer, _: optimizer, "1"),
        "edl": stepping(lambda tape: tape, ours, "1"),
    }, time.process_time


def take_turns(steps: dict[str, Callable[[], None]], clock: Callable[[], float]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ADAPTER_ROUNDS):
        for name, step in steps.items():
            began = clock()
            for _ in range(ADAPTER_STEPS):
                step()
            taken[name].append((clock() - began) / ADAPTER_STEPS)
    for name, times in taken.items():
        print(f"{name:<28} {1e6 * statistics.median(times):9.0f} us of CPU per step of {2 * LAYERS} gradients")


async def two_workers() -> None:
    gathering = Gathering(["w0", "w1"])
    command = [sys.executable, "-m", "benchmarks.step", "adapters", "--place"]
    places = [msgspec.json.encode(place).decode() for place in await gathering.open()]
    workers = [await asyncio.create_subprocess_exec(*command, place) for place in places]
    await asyncio.gather(*(worker.wait() for worker in workers))
    await gathering.stop()


def adapters(options: argparse.Namespace) -> tuple[bool, list[Row]]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    if options.place:
        take_turns(*tensorflow_adapters(msgspec.json.decode(options.place, type=Place)))
        return True, []
    if "torch" in options.frameworks:
        take_turns(*torch_adapters())
    if "tensorflow" in options.frameworks:
        asyncio.run(two_workers())
    return True, []


# ------------------------------------------------------------------------------------------------------------ rings

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

        from edl.torch.torch_framework import TorchFramework
        from edl.torch.torch_ring import GroupRing

        torch.set_num_threads(1)
        self.width, self.layers, self.samples, self.steps = MODELS[name]
        self.frameworks = {GROUPS: TorchFramework()}
        self.frameworks[GROUPS].ring = GroupRing(self.frameworks[GROUPS].gpu)
        if horovod:
            from edl.torch.torch_horovod_ring import TorchHorovodRing

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


async def measure_rings(name: str, size: int, rounds: int, *more: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "benchmarks.step",
                    "rings",
                    "--work",
                    name,
                    str(rank),
                    str(Path(folder) / "store"),
                ),
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
    show_rings(name, size, [json.loads(line) for line in lines])


def show_rings(name: str, size: int, told: list[Any]) -> None:
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


def rings(options: argparse.Namespace) -> tuple[bool, list[Row]]:
    if options.work:
        name, rank, store = options.work
        work(name, int(rank), store, options.rounds, horovod=not options.without_horovod)
        return True, []
    os.environ.update({DEVICE: options.device, APART: "1" if options.apart else ""})
    more = ["--without-horovod"] if options.without_horovod else []
    for name in MODELS:
        if options.model in {name, "both"}:
            asyncio.run(measure_rings(name, options.workers, options.rounds, *more))
    return True, []


# --------------------------------------------------------------------------------------------------------- torchrun

UNCHANGED_NOT_DONE = 1.01


def unchanged(options: argparse.Namespace) -> tuple[bool, list[Row]]:
    done, rows = True, []
    for model in (name for name in MODELS if options.model in {name, "both"}):
        found = paired_turns(launches(2, options.ring), PAIRED[model], options.turns + 1)
        ratios = np.array(found["edl"][1:]) / np.array(found["torchrun"][1:])
        ratio, error = mean_ratio(ratios)
        done = done and (model == "mlp" or ratio - 2 * error <= UNCHANGED_NOT_DONE)
        row = {"model": model, "ring": options.ring or "auto"}
        row |= {f"{kind}, ms a step": round(statistics.median(times), 3) for kind, times in found.items()}
        row |= {
            "ratio": round(ratio, 3),
            "standard error": round(error, 3),
            "median": round(float(np.median(ratios)), 3),
        }
        rows.append(row)
        told = json.dumps(row) if options.json else "  ".join(f"{name} {value}" for name, value in row.items())
        print(told, flush=True)
    return done, rows


PARTS: dict[str, Callable[[argparse.Namespace], tuple[bool, list[Row]]]] = {
    "overhead": overhead,
    "stock": stock,
    "rings": rings,
    "torchrun": unchanged,
    "adapters": adapters,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in PARTS:
        part = harness.add_common(parts.add_parser(name))
        if name not in {"rings", "torchrun"}:
            part.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
        if name in ("overhead", "stock"):
            part.add_argument("--rounds", type=int, default=6, help="at least 2, for a standard error")
            part.add_argument("--batch", type=int, default=64)
    chosen = parts.choices
    chosen["overhead"].add_argument("--steps", type=int, default=400, help="of each kind, in each round")
    chosen["overhead"].add_argument("--control", action="store_true", help="plain Horovod against plain Horovod")
    chosen["stock"].add_argument("--steps", type=int, default=1000)
    chosen["adapters"].add_argument("--place", help=argparse.SUPPRESS)  # of one of its own workers
    ring = chosen["rings"]
    ring.add_argument("--work", nargs=3, help=argparse.SUPPRESS)  # likewise
    ring.add_argument("--rounds", type=int, default=12)
    ring.add_argument("--workers", type=int, default=2)
    ring.add_argument("--model", choices=[*MODELS, "both"], default="both")
    ring.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    ring.add_argument("--apart", action="store_true", help="workers share a GPU as if each were of another host")
    ring.add_argument("--without-horovod", action="store_true")
    script = chosen["torchrun"]
    script.add_argument("--turns", type=int, default=30)
    script.add_argument("--model", choices=[*MODELS, "both"], default="both")
    script.add_argument("--ring", choices=["torch", "horovod"])
    options = parser.parse_args()
    if options.part == "overhead" and options.steps % BLOCK:
        parser.error(f"--steps {options.steps}: {BLOCK} of each kind are looked at together; give a multiple of that")
    if options.part == "stock" and options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: a standard error takes two; give at least 2")
    done, rows = PARTS[options.part](options)
    if rows:
        harness.keep(options.keep, rows)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
