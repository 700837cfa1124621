"""What saving a job costs its training: edl's checkpoints beside `torch.save` and PyTorch's `async_save`, in one run.

    python -m benchmarks.checkpoint [--mb 10 100 500] [--rounds 6] [--every 5] [--ways save async]
        [--device-ms MS] [--folder DIR] [--json]

A job of two torch workers for each size of state (parameters and their momentum). In it windows of --every seconds
follow each other, in the same processes: edl's checkpoint is begun with one; a window without any; rank 0 saves all by
`torch.save` in its loop, with fsync; one without; both call `torch.distributed.checkpoint.async_save` (a gloo group of
its own, fsync of its files); one without, and so on. Such a row is a round. A window is as long as it takes until all
is durable, if that is longer. The round in which edl's first checkpoint falls is not counted. Then the job is started
again, and each way's newest checkpoint is read, from the page cache.

    slow-down   by how much longer the steps of a window took than those of the windows without, of the same round; the
                median of the rounds, with the least and the greatest. `none` is the windows without against each other:
                what this way of measuring makes of nothing
    processor   what trainers and daemons took of it in a window beyond what as many steps without took (median), which
                other work on the machine blurs less
    stall       the longest step of a window, less the median step without; median and longest of the rounds
    durable     until it was durable, from the step after which it was begun
    written     megabytes by each worker
    restore     from when the reader begins until the state is in the model, of the slower worker. edl compares the
                checksums of all files once more, in `edl run`, before any worker starts: not in it

Goal: edl slows down training by 1 % at most, at 100 MB, every 5 s; exit code 1 beyond. On a machine whose cores are
all busy with training, what daemons do (to read the copy, its checksum, to write it) takes its time from the trainers.
With --device-ms a step is a wait of so many milliseconds, as where a device computes it and cores are free: then what
is seen is what edl takes from training itself. The state is a frozen base and a small head that is trained.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import cpu_seconds, daemon_of

JOB = "saved"
NONE = "none"
OTHERS = ("save", "async")
WINDOWS = {"save": "torch.save", "async": "async_save"}
RESTORED = "restored.json"
GOAL, GOAL_MB = 0.01, 100
PATIENCE_S = 1800.0


def measure(mb: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        run("train", folder, mb, options)
        run("restore", folder, mb, options)
        found = json.loads((folder / "trained.json").read_text())
        restored = [json.loads((folder / f"{RESTORED}.{rank}").read_text()) for rank in (0, 1)]
    return summary(mb, found, restored)


def run(part: str, folder: Path, mb: int, options: argparse.Namespace) -> None:
    worker = [sys.executable, "-m", "benchmarks.checkpoint", "--work", part, str(folder), "--mb", str(mb)]
    worker += ["--every", str(options.every), "--rounds", str(options.rounds), "--ways", *options.ways]
    worker += [] if options.device_ms is None else ["--device-ms", str(options.device_ms)]
    # From one checkpoint of edl's to the next all other windows fit in, with half of one to spare for each.
    round_s = options.every * (2 + 2 * len(options.ways)) * 1.25 if part == "train" else 3600
    command = [
        *(str(Path(sys.executable).with_name("edl")), "run", "-np", "2", "--job", JOB),
        *("--checkpoint", str(folder / "edl"), "--checkpoint-every", f"{round_s:.1f}s", "--keep", "2"),
        *("--resume", "auto" if part == "train" else "must", *worker),
    ]
    environ = {**os.environ, "EDL_HOME": str(folder / f"home-{part}"), "CUDA_VISIBLE_DEVICES": ""}
    job = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if job.returncode:
        raise SystemExit(f"the job failed:\n{job.stdout[-3000:]}{job.stderr[-3000:]}")


def summary(mb: int, found: dict[str, Any], restored: list[dict[str, float]]) -> dict[str, Any]:
    """Windows that edl's next checkpoint has cut off are not counted."""
    rounds: list[list[dict[str, Any]]] = []
    for window in found["windows"]:
        if window["kind"] == "edl":
            rounds.append([])
        if rounds and not window["cut"]:
            rounds[-1].append(window)
    ways: dict[str, dict[str, Any]] = {}
    for kind in (NONE, "edl", *WINDOWS.values()):
        looked = [looked_at(kind, windows) for windows in rounds]
        seen = [one for one in looked if one is not None]
        if seen:
            ways[kind] = {
                "slow_down": [one["slow_down"] for one in seen],
                "cpu_s": [one["cpu_s"] for one in seen],
                "stall_ms": [one["stall_ms"] for one in seen],
                "durable_s": statistics.median(one["durable_s"] for one in seen),
                "bytes": found["bytes"].get(kind, []),
                "restore_s": max((rank[kind] for rank in restored if kind in rank), default=None),
            }
    plain = [step for windows in rounds for one in windows if one["kind"] == NONE for step in one["steps_s"]]
    return {"mb": mb, "step_ms": 1000 * statistics.median(plain), "rounds": len(rounds), "ways": ways}


def looked_at(kind: str, windows: list[dict[str, Any]]) -> dict[str, float] | None:
    """One window of a round, against the ones without; of those the first against the others."""
    without = [one["steps_s"] for one in windows if one["kind"] == NONE]
    mine = without[:1] if kind == NONE else [one["steps_s"] for one in windows if one["kind"] == kind]
    others = without[1:] if kind == NONE else without
    if not mine or not others:
        return None
    steps = [step for window in others for step in window]
    durable = [one["durable_s"] for one in windows if one["kind"] == kind]
    cpu = sum(one["cpu_s"] for one in windows if one["kind"] == NONE) / sum(map(len, without))
    of_mine = next(one["cpu_s"] for one in windows if one["kind"] == kind)
    return {
        "slow_down": statistics.fmean(mine[0]) / statistics.fmean(steps) - 1,
        "cpu_s": of_mine - cpu * len(mine[0]),
        "stall_ms": 1000 * (max(mine[0]) - statistics.median(steps)),
        "durable_s": durable[0],
    }


def shown(result: dict[str, Any]) -> str:
    lines = [f"{result['mb']} MB, {result['rounds']} rounds, steps of {result['step_ms']:.0f} ms"]
    for kind, way in result["ways"].items():
        slow, stalls = way["slow_down"], way["stall_ms"]
        line = f"  {kind:<10}  slow-down {statistics.median(slow):+.2%} ({min(slow):+.2%} to {max(slow):+.2%})"
        line += f"  processor time {statistics.median(way['cpu_s']):+.2f} s"
        line += f"  stall {statistics.median(stalls):.0f} ms, longest {max(stalls):.0f}"
        if kind != NONE:
            line += f"  durable {way['durable_s']:.2f} s"
            line += f"  written {' and '.join(f'{size / 1e6:.1f}' for size in way['bytes'])} MB"
            line += f"  restore {1000 * way['restore_s']:.0f} ms"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", nargs="+", type=int, default=[10, 100, 500], help="of state, each in a job of its own")
    parser.add_argument("--rounds", type=int, default=6, help="checkpoints of each way that are counted")
    parser.add_argument("--every", type=float, default=5.0, help="seconds from one checkpoint to the next")
    parser.add_argument("--ways", nargs="*", choices=OTHERS, default=list(OTHERS), help="beside edl's")
    parser.add_argument("--device-ms", type=float, help="steps wait so long instead of computing")
    parser.add_argument("--folder", type=Path, help="on the disk that is to be written to")
    parser.add_argument("--json", action="store_true", help="one JSON object per size")
    options = parser.parse_args()
    done = True
    for mb in options.mb:
        result = measure(mb, options)
        if mb == GOAL_MB:
            done = done and statistics.median(result["ways"]["edl"]["slow_down"]) <= GOAL
        print(json.dumps(result) if options.json else shown(result), flush=True)
    return 0 if done else 1


# ------------------------------------------------------------------------------------------------------------- a worker


dist: Any = importlib.import_module("torch.distributed")
dcp: Any = importlib.import_module("torch.distributed.checkpoint")

WIDTH, BATCH, SAMPLES = 1024, 16, 100_000
BYTES = WIDTH * WIDTH * 4 * 2  # of one layer, with its momentum
GO_ON, STOP = 0, -1


class OnDevice(torch.nn.Module):
    """A step as processors see one that a device computes: a wait. The state is a frozen base, of which nothing is
    computed here, and a head that is trained, as in fine-tuning.
    """

    def __init__(self, state_mb: int, device_ms: float) -> None:
        super().__init__()
        self._wait_s = device_ms / 1000
        rows = round(state_mb * 1e6 / (WIDTH * WIDTH * 4))
        self.base = torch.nn.ParameterList([torch.randn(WIDTH, WIDTH) for _ in range(rows)]).requires_grad_(False)
        self.head = torch.nn.Linear(WIDTH, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self._wait_s)
        logits: torch.Tensor = self.head(inputs)
        return logits


def built(state_mb: int, device_ms: float | None) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """So many megabytes, of parameters and their momentum."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if device_ms is not None:
        on_device = OnDevice(state_mb, device_ms)
        return on_device, torch.optim.SGD(on_device.head.parameters(), lr=0.001, momentum=0.9)
    layers: list[torch.nn.Module] = []
    for _ in range(max(1, round(state_mb * 1e6 / BYTES))):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


# ------------------------------------------------------------------------------------------------- ways of saving


class ByTorchSave:
    """Rank 0 writes all of it in its loop, as many scripts do; with the flushes that make it durable."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder / "save", rank
        self._folder.mkdir(exist_ok=True)

    def begin(self, state: dict[str, Any]) -> None:
        if self._rank:
            return
        draft = self._folder / "state.new"
        with draft.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._folder / "state.pt")
        place = os.open(self._folder, os.O_RDONLY)
        os.fsync(place)
        os.close(place)

    def is_durable(self) -> bool:
        return True

    def bytes(self) -> list[int]:
        return [(self._folder / "state.pt").stat().st_size, 0]

    def restore(self, state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        del state
        found = torch.load(self._folder / "state.pt", weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])


class ByAsyncSave:
    """`torch.distributed.checkpoint.async_save`: a copy in the loop, and a thread that writes it."""

    def __init__(self, folder: Path, group: Any) -> None:
        self._folder, self._group, self._number = folder / "async", group, 0
        self._coming: Future[Any] | None = None

    def begin(self, state: dict[str, Any]) -> None:
        self._number += 1
        writer = dcp.FileSystemWriter(self._folder / f"{self._number}", sync_files=True)
        found = dcp.async_save(state, storage_writer=writer, process_group=self._group)
        assert isinstance(found, Future)
        self._coming = found

    def is_durable(self) -> bool:
        if self._coming is None or not self._coming.done():
            return False
        self._coming.result()
        old = self._folder / f"{self._number - 2}"  # the last two stay, as of edl's
        threading.Thread(target=shutil.rmtree, args=(old, True)).start()
        return True

    def bytes(self) -> list[int]:
        newest = max(self._folder.iterdir(), key=lambda one: int(one.name))
        return [sum(one.stat().st_size for one in newest.glob(f"__{rank}_*")) for rank in (0, 1)]

    def restore(self, state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        newest = max(self._folder.iterdir(), key=lambda one: int(one.name))
        dcp.load(state, checkpoint_id=newest, process_group=self._group)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


class ByEdl:
    """It begins by itself; what is seen of it is what lies in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "edl" / JOB

    def manifests(self) -> int:
        """Number of the newest checkpoint that is durable, of this life."""
        numbers = [int(one.parent.name.split("-")[1]) for one in self._folder.glob("*/manifest.json")]
        return max(numbers, default=0)

    def bytes(self) -> list[int]:
        newest = max(self._folder.glob("*/manifest.json")).parent
        return [sum(one.stat().st_size for one in newest.glob(f"*-{rank:04d}*")) for rank in (0, 1)]


# -------------------------------------------------------------------------------------------------------- windows


@dataclass
class Window:
    """From the end of the step at which something began."""

    kind: str
    began: float
    ends: list[float] = field(default_factory=list)  # of its steps
    durable_s: float | None = None
    cut: bool = False  # edl's next checkpoint was begun in it
    cpu_s: float = 0.0  # of all processes of the job

    def told(self) -> dict[str, Any]:
        times = [later - earlier for earlier, later in zip([self.began, *self.ends], self.ends, strict=False)]
        told = {"kind": self.kind, "steps_s": times, "durable_s": self.durable_s, "cut": self.cut}
        return {**told, "cpu_s": self.cpu_s}


class Schedule:
    """Of rank 0: which window the step that has just ended belongs to, and what begins."""

    def __init__(self, options: argparse.Namespace, edl: ByEdl, others: dict[str, Any], processes: list[int]) -> None:
        self._processes, self._cpu_s = processes, 0.0
        self._every, self._rounds = options.every, options.rounds
        self._edl, self._others = edl, others
        self._ways = [WINDOWS[name] for name in OTHERS if name in others]
        self._waiting: list[str] = []
        self._now = Window(NONE, time.perf_counter())
        self._edls = 0  # checkpoints of edl's that were begun
        self.windows: list[Window] = []

    def next(self, at: float, *, edl_copies: bool) -> int:
        """After a step that ended at that time, in `time.perf_counter()`."""
        now = self._now
        now.ends.append(at)
        if edl_copies:
            self._edls += 1
            if self._edls > self._rounds + 1:
                return STOP
            self._open("edl", at)
            self._waiting = [one for way in self._ways for one in (NONE, way)] + [NONE]
            return GO_ON
        if now.durable_s is None and self._is_durable(now.kind):
            now.durable_s = time.perf_counter() - now.began
        if at - now.began < self._every or now.durable_s is None:
            return GO_ON
        kind = self._waiting.pop(0) if self._waiting else NONE
        self._open(kind, at)
        return 0 if kind == NONE else 1 + OTHERS.index(next(name for name, way in WINDOWS.items() if way == kind))

    def _open(self, kind: str, at: float) -> None:
        self._now.cut = at - self._now.began < self._every or self._now.durable_s is None
        cpu_s, self._cpu_s = self._cpu_s, sum(map(cpu_seconds, self._processes))
        self._now.cpu_s = self._cpu_s - cpu_s
        if self._edls > 1 + (kind == "edl"):  # those before the first checkpoint warm up, and so does that
            self.windows.append(self._now)
        self._now = Window(kind, at)

    def _is_durable(self, kind: str) -> bool:
        if kind == NONE:
            return True
        if kind == "edl":
            return self._edl.manifests() >= self._edls
        durable: bool = self._others[next(name for name, way in WINDOWS.items() if way == kind)].is_durable()
        return durable


# ----------------------------------------------------------------------------------------------------------- a job


def others_of(options: argparse.Namespace, rank: int) -> dict[str, Any]:
    """Beside edl's, by name; both ranks have the same ones."""
    store = dist.FileStore(str(options.folder / f"store-{os.environ['EDL_LIFE']}"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(minutes=5))
    ways: dict[str, Any] = {}
    if "save" in options.ways:
        ways["save"] = ByTorchSave(options.folder, rank)
    if "async" in options.ways:
        ways["async"] = ByAsyncSave(options.folder, dist.new_group(backend="gloo"))
    return ways


def train(edl: Any, options: argparse.Namespace) -> None:
    from edl.torch.torch_process import trainer

    model, optimizer = built(options.mb, options.device_ms)
    optimizer = edl.Optimizer(optimizer, model=model)
    inputs = torch.randn(BATCH, WIDTH)
    labels = torch.randint(10, (BATCH,))
    edls, copier = ByEdl(options.folder), trainer._shell.copier
    schedule, ways = None, {}
    for ids in edl.elastic_shard_generator(SAMPLES, epochs=10**6).batches(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[: len(ids)]), labels[: len(ids)]).backward()
        optimizer.step()
        at = time.perf_counter()
        edl.notify_batch_end()
        if edl.size() < 2:
            continue
        if not ways:
            ways = others_of(options, edl.rank()) or {"none": None}
            processes = torch.tensor([os.getpid(), daemon_of(os.getpid())])
            of_all = [torch.zeros_like(processes), torch.zeros_like(processes)]
            dist.all_gather(of_all, processes)
            schedule = Schedule(options, edls, ways, torch.cat(of_all).tolist())
        word = torch.tensor([0])
        if edl.rank() == 0:
            assert schedule is not None
            word[0] = schedule.next(at, edl_copies=not copier.idle)
        dist.broadcast(word, 0)
        if word.item() == STOP:
            break
        if word.item() > 0:
            ways[OTHERS[int(word.item()) - 1]].begin(state_of(model, optimizer))
    if edl.rank() == 0:
        assert schedule is not None
        found = {
            "windows": [window.told() for window in schedule.windows],
            "bytes": {WINDOWS[name]: way.bytes() for name, way in ways.items() if way} | {"edl": edls.bytes()},
        }
        (options.folder / "trained.json").write_text(json.dumps(found))
    dist.barrier()


def restore(edl: Any, options: argparse.Namespace) -> None:
    """The next life: what each way takes until the state is in the model."""
    took: dict[str, float] = {}
    _time_taking_over(took)
    model, plain = built(options.mb, options.device_ms)
    optimizer = edl.Optimizer(plain, model=model)
    for ids in edl.elastic_shard_generator(SAMPLES, epochs=10**6).batches(BATCH):
        optimizer.zero_grad()
        model(torch.zeros(len(ids), WIDTH)).sum().backward()
        optimizer.step()
        edl.notify_batch_end()
        break
    for name, way in others_of(options, edl.rank()).items():
        state = state_of(model, optimizer)
        began = time.perf_counter()
        way.restore(state, model, optimizer)
        took[WINDOWS[name]] = time.perf_counter() - began
    (options.folder / f"{RESTORED}.{edl.rank()}").write_text(json.dumps(took))
    dist.barrier()


def _time_taking_over(took: dict[str, float]) -> None:
    from edl.trainer.first_state import FirstState

    take = FirstState._take

    def timed(self: FirstState, found: Any, rank: int, size: int) -> None:
        with _timed(took, "edl"):
            take(self, found, rank, size)

    FirstState._take = timed  # type: ignore[method-assign]


@contextlib.contextmanager
def _timed(took: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    took[name] = time.perf_counter() - began


def work(words: list[str]) -> None:
    """Of one worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["train", "restore"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mb", type=int, required=True)
    parser.add_argument("--every", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--device-ms", type=float)
    parser.add_argument("--ways", nargs="*", required=True)
    options = parser.parse_args(words)
    import edl.torch as edl

    edl.init()
    {"train": train, "restore": restore}[options.part](edl, options)


if __name__ == "__main__":
    sys.exit(main())
