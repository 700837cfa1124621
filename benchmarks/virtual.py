"""What virtual workers cost, and whether they learn as well.

    python -m benchmarks.virtual step [--model mlp large] [--rings torch horovod] [--turns 30] [--virtual 8]
    python -m benchmarks.virtual loss [--seeds 5] [--epochs 20] [--virtual 8]

`step`: a script in a job of two workers with virtual workers, and in one with `--batch-policy fixed-global`, whose
steps have the same samples in the same microbatches. The jobs take turns of some steps, while the other one waits; who
is first changes. Printed: the median step of each, the mean of the turns' ratios with its standard error and their
median; the same of the processor time of both workers, which other work on the machine blurs less; and what a worker
sends in a step, as its sockets count it. Exit code 1 where the mean is more than two standard errors above 1.05 for the
small model (395 thousand parameters), 1.15 for the large one (25 million).

`loss`: the digits are learnt by both, by one worker, with equal seeds, samples of a step and microbatches, so that the
sums differ and nothing else: the loss of all training samples, and the accuracy on others, at the end. Printed: both,
seed by seed, and the mean difference with its standard error. Exit code 1 where the loss is more than two standard
errors worse, and not by a thousandth at most.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import Job, add_common, edl_run, keep, mean_ratio
from benchmarks.worker import digits
from edl.proof.paired_turns import MODELS, paired_turns

WAYS = ("virtual", "fixed-global")
LIMITS = {"mlp": 1.05, "large": 1.15}
BYTES = "EDL_BENCHMARK_BYTES"
ACKNOWLEDGED_AT = 120  # in the kernel's tcp_info: bytes that the other side has acknowledged
HELD_OUT = 297
MICRO = 8  # samples of a microbatch, of the digits
NEGLIGIBLE = 0.001
PATIENCE_S = 600.0
Row = dict[str, Any]


def flags(way: str, virtual: int, ring: str) -> list[str]:
    of_way = ["--virtual-workers", str(virtual)] if way == "virtual" else ["--batch-policy", "fixed-global"]
    return ["--ring", ring, *of_way]


# ---------------------------------------------------------------------------------------------------------- the cost


def step(options: argparse.Namespace) -> tuple[bool, list[Row]]:
    done, rows = True, []
    for model in options.model:
        for ring in options.rings:
            with tempfile.TemporaryDirectory() as folder:
                os.environ.update({BYTES: folder, "VIRTUAL": str(options.virtual), "CUDA_VISIBLE_DEVICES": ""})
                os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # this file is the workers' script, too
                ways: dict[str, Sequence[str]] = {
                    way: [*edl_run(2, way, *flags(way, options.virtual, ring)), sys.executable] for way in WAYS
                }
                trained = msgspec.structs.replace(MODELS[model], script=Path(__file__).resolve())
                found = paired_turns(ways, trained, options.turns + 1)
                noted = {way: noted_by(Path(folder), way) for way in WAYS}
            ratios = np.array([one / other for one, other in zip(found["virtual"], found["fixed-global"], strict=True)])
            mean, error = mean_ratio(ratios[1:])
            cpu = mean_ratio(np.array(noted["virtual"]["cpu_ms"]) / np.array(noted["fixed-global"]["cpu_ms"]))
            done = done and not mean - 2 * error > LIMITS[model]
            rows.append(
                {
                    "model": model,
                    "ring": ring,
                    "turns": len(ratios) - 1,
                    **{f"{way}, ms": round(statistics.median(found[way][1:]), 2) for way in WAYS},
                    "ratio": round(mean, 3),
                    "standard error": round(error, 3),
                    "median ratio": round(float(np.median(ratios[1:])), 3),
                    "of processor time": round(cpu[0], 3),
                    "its standard error": round(cpu[1], 3),
                    **{f"{way}, kB sent in a step": round(statistics.median(noted[way]["kb"]), 1) for way in WAYS},
                }
            )
            shown(rows[-1], options)
    return done, rows


def shown(row: Row, options: argparse.Namespace) -> None:
    told = json.dumps(row) if options.json else "  ".join(f"{name} {value}" for name, value in row.items())
    print(told, flush=True)


def noted_by(folder: Path, way: str) -> dict[str, list[float]]:
    """Return what both workers noted of a step in each turn after the first: the mean of both."""
    of_ranks = [[json.loads(line) for line in path.read_text().splitlines()[1:]] for path in folder.glob(f"{way} *")]
    turns = list(zip(*of_ranks, strict=True))
    return {name: [statistics.mean(one[name] for one in turn) for turn in turns] for name in ("kb", "cpu_ms")}


def acknowledged() -> int:
    """Return the bytes that this process has sent by all of its TCP connections."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.family in {socket.AF_INET, socket.AF_INET6} and one.type == socket.SOCK_STREAM:
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    found += struct.unpack_from("<Q", info, ACKNOWLEDGED_AT)[0] if len(info) > ACKNOWLEDGED_AT else 0
        except OSError:  # it was closed meanwhile
            continue
    return found


def train_in_turns(words: list[str]) -> None:
    """Train some steps each time that `edl.proof.paired_turns` tells this job to."""
    import torch

    import edl.torch as edl

    width, layers, samples, turns, steps = map(int, words[:5])
    folder, way, virtual = Path(words[5]), words[6], int(os.environ["VIRTUAL"])
    torch.manual_seed(0)
    hidden = [layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 1))
    edl.init()
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), model=model)
    inputs = torch.randn(virtual * samples, width)
    shards = edl.elastic_shard_generator(virtual * samples * turns * steps, epochs=1, shuffle=True)
    noted: list[float] = []
    before, cpu_before = 0, 0.0
    for number, ids in enumerate(shards.batches(samples if way == "virtual" else virtual * samples)):
        turn, at = divmod(number, steps)
        noted.append(time.perf_counter())
        while not at and not (folder / f"turn {turn} {way}").exists():
            time.sleep(0.002)
        if not at:
            before, cpu_before = acknowledged(), time.process_time()
        optimizer.zero_grad()
        for part, share in edl.microbatches(ids, None if way == "virtual" else samples):
            (model(inputs[part % len(inputs)]).pow(2).mean() * share).backward()
        optimizer.step()
        if at == steps - 1:
            with (Path(os.environ[BYTES]) / f"{way} {edl.rank()}").open("a") as file:
                used = {"kb": (acknowledged() - before) / steps / 1000}
                file.write(json.dumps({**used, "cpu_ms": (time.process_time() - cpu_before) / steps * 1000}) + "\n")
            (folder / f"{way} {edl.rank()}").write_text(" ".join(map(str, noted)))
            (folder / f"{way} {edl.rank()}").rename(folder / f"done {turn} {way} {edl.rank()}")
            noted = []
        edl.notify_batch_end()


# ------------------------------------------------------------------------------------------------------ what is learnt


def loss(options: argparse.Namespace) -> tuple[bool, list[Row]]:
    rows: list[Row] = []
    for seed in range(options.seeds):
        found = {way: learnt(way, seed, options) for way in WAYS}
        rows.append({"seed": seed, **{f"{way}, {name}": one[name] for way, one in found.items() for name in one}})
        shown(rows[-1], options)
    worse = np.array([row["virtual, loss"] - row["fixed-global, loss"] for row in rows])
    mean, error = mean_ratio(worse)
    told = f"the loss is {mean:+.6f} ± {error:.6f} beside fp32's sum"
    print(json.dumps({"difference": mean, "standard error": error}) if options.json else told)
    return not (mean > 2 * error and mean > NEGLIGIBLE), rows


def learnt(way: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="edl-virtual-") as name:
        words = ["--learn", name, way, str(seed), str(options.epochs), str(options.virtual)]
        launch = edl_run(1, "v", *flags(way, options.virtual, "torch"))
        job = Job(Path(name), [*launch, sys.executable, __file__, *words], name="v", CUDA_VISIBLE_DEVICES="")
        try:
            job.launcher.wait(PATIENCE_S)
        finally:
            job.launcher.terminate()
            job.end()
        if job.launcher.returncode:
            raise SystemExit(f"{way}, seed {seed}:\n{job.log()}")
        found: dict[str, float] = json.loads((Path(name) / "result.json").read_text())
        return found


def learn(words: list[str]) -> None:
    """Learn the digits; rank 0 writes the loss and the accuracy at the end."""
    import torch

    import edl.torch as edl

    folder, way, seed, epochs, virtual = Path(words[0]), words[1], *map(int, words[2:5])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    images, labels = map(torch.from_numpy, digits())
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    train, test = order[HELD_OUT:], order[:HELD_OUT]
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    edl.init()
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
    shards = edl.elastic_shard_generator(len(train), epochs=epochs, shuffle=True, seed=seed)
    for ids in shards.batches(MICRO if way == "virtual" else MICRO * virtual):
        optimizer.zero_grad()
        for part, share in edl.microbatches(ids, None if way == "virtual" else MICRO):
            chosen = train[torch.from_numpy(part)]
            (torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]) * share).backward()
        optimizer.step()
        edl.notify_batch_end()
    if edl.rank() == 0:
        with torch.no_grad():
            value = torch.nn.functional.cross_entropy(model(images[train]), labels[train]).item()
            accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        (folder / "result.json").write_text(json.dumps({"loss": round(value, 6), "accuracy": round(accuracy, 4)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("step", "loss"))
    parser.add_argument("--model", nargs="+", default=list(LIMITS), choices=tuple(LIMITS))
    parser.add_argument("--rings", nargs="+", default=["torch", "horovod"])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--virtual", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    options = add_common(parser).parse_args()
    done, rows = {"step": step, "loss": loss}[options.part](options)
    keep(options.keep, rows)
    return 0 if done else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--learn"]:
        learn(sys.argv[2:])
    elif sys.argv[1:2] and sys.argv[1].isdecimal():
        train_in_turns(sys.argv[1:])
    else:
        sys.exit(main())
