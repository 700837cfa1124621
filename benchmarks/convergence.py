"""Does training come out the same when workers come and go? The digits, under each batch policy, over several seeds.

    python -m benchmarks.convergence [--parts policies ramp] [--policies NAME ...] [--seeds 5] [--json]

    policies  accuracy and loss at the end of a run with six changes of size (2, 4, 1, 3, 2, 4, 2 workers), beside one
              of two workers all the time: mean, and the spread from the least to the greatest
    ramp      the batch becomes four times as large early in training (one worker, after 150 steps four), and the
              learning rate with it, at once or in a line of eight steps: by how much the loss rises above what it was
              before, within 60 steps

Exit code 1 if a policy's mean accuracy is more than three points below that of fixed size, or a change did not happen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Job, edl_run, program
from benchmarks.worker import digits

SIZES = (4, 1, 3, 2, 4, 2)
BATCH = 64  # of two workers together
LEEWAY = 0.03
PATIENCE_S = 300.0
AFTER_STEPS = 60
HOLD_AT = "150"
POLICIES: dict[str, tuple[str, int, tuple[str, ...]]] = {  # policy, n of batches(n), more arguments of the worker
    "fixed size": ("fixed-local", BATCH // 2, ()),
    "fixed-local, rate as it is": ("fixed-local", BATCH // 2, ()),
    "fixed-local, rate linear": ("fixed-local", BATCH // 2, ("--rate", "linear")),
    f"fixed-local,most={BATCH}": (f"fixed-local,most={BATCH}", BATCH // 2, ()),
    "fixed-global": ("fixed-global", BATCH, ()),
}
JOB = "c"


def run(policy: str, batch: int, seed: int, workers: int, sizes: tuple[int, ...], *more: str) -> dict[str, Any]:
    """One training; `sizes` are asked for one after the other."""
    with tempfile.TemporaryDirectory(prefix="edl-convergence-") as name:
        folder = Path(name)
        work = [sys.executable, "-m", "benchmarks.convergence", "--work", name]
        work += ["--seed", str(seed), "--batch", str(batch), *more]
        launch = edl_run(workers, JOB, "--batch-policy", policy)
        job = Job(folder, [*launch, *work], name=JOB, CUDA_VISIBLE_DEVICES="")
        try:
            done = [_changed(job, size) for size in sizes]
            job.launcher.wait(PATIENCE_S)
        finally:
            job.launcher.terminate()
            job.end()
        if job.launcher.returncode or not all(done):
            raise SystemExit(f"{policy}, seed {seed}: {done}\n{job.log()}")
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        found["recut"] = _recut_after(job)
        return found


def _recut_after(job: Job) -> int:
    """The step after which all workers had their share; 0 if they had it from the beginning."""
    return max((event["after_step"] for event in job.events() if event["kind"] == "recut"), default=0)


def _changed(job: Job, size: int) -> bool:
    """Ask for another size until the job has it; it may not have begun yet. False when it ends before."""
    until = time.monotonic() + PATIENCE_S
    while job.launcher.poll() is None and time.monotonic() < until:
        command = [program("edl"), "scale", JOB, str(size), "--wait"]
        if subprocess.run(command, env=job.environ, capture_output=True, check=False).returncode == 0:
            time.sleep(1.0)  # of training at that size
            return True
        time.sleep(0.5)
    return False


def policies(seeds: int, chosen: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for name in chosen:
        policy, batch, more = POLICIES[name]
        sizes = () if name == "fixed size" else SIZES
        runs = [
            run(policy, batch, seed, 2, sizes, "--epochs", "60", "--step-s", "0.05", *more) for seed in range(seeds)
        ]
        found = {"accuracy": [one["accuracy"] for one in runs], "loss": [one["losses"][-1][2] for one in runs]}
        rows.append({"policy": name, "steps": [one["losses"][-1][0] for one in runs], **found})
        _tell(rows[-1])
    return rows


def ramp(seeds: int, _: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for name, steps in (("at once", 0), ("8 steps", 8)):
        rises, changes = [], []
        for seed in range(seeds):
            rate = f"--rate linear --base-batch 16 --lr 0.02 --hold-at {HOLD_AT} --ramp {steps}".split()
            found = run("fixed-local", 16, seed, 1, (4,), "--epochs", "6", "--step-s", "0.02", *rate)
            losses = found["losses"]
            change = next(at for at, (step, workers, _) in enumerate(losses) if workers > 1 and step > found["recut"])
            before = statistics.fmean(loss for _, _, loss in losses[change - 10 : change])
            rises.append(max(loss for _, _, loss in losses[change : change + AFTER_STEPS]) - before)
            changes.append(losses[change][0])
        rows.append({"rate": name, "rise": rises, "after_step": changes})
        _tell(rows[-1])
    return rows


def _tell(row: dict[str, Any]) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)


def show(found: dict[str, Any]) -> None:
    for row in found.get("policies", []):
        figures = f"accuracy {_spread(row['accuracy'])}, loss {_spread(row['loss'])}"
        print(f"{row['policy']:<28} {figures}, {statistics.fmean(row['steps']):.0f} steps")
    for row in found.get("ramp", []):
        print(f"batch x 4, rate x 4 {row['rate']:<8}: the loss rises by {_spread(row['rise'])}")
    if rows := found.get("ramp"):
        less = sum(slowly < at_once for at_once, slowly in zip(*(row["rise"] for row in rows), strict=True))
        print(f"  by less in eight steps with {less} of {len(rows[0]['rise'])} seeds")


def _spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def is_sound(found: dict[str, Any]) -> bool:
    rows = {row["policy"]: statistics.fmean(row["accuracy"]) for row in found.get("policies", [])}
    least = rows.get("fixed size", 0.0) - LEEWAY
    return all(accuracy >= least for accuracy in rows.values())


# ----------------------------------------------------------------------------------------------------------- a worker


HELD_S = 0.5  # a step, while others are waited for
HELD_OUT = 297  # of all samples, for the accuracy


def work(words: list[str]) -> None:
    """Learn the digits under a batch policy; rank 0 writes the loss before each step, and the accuracy at the end."""
    import torch

    import edl.torch as edl

    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="n of batches(n)")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--rate", default="none", help="rule of edl.scale_rate")
    parser.add_argument("--base-batch", type=int, default=64)
    parser.add_argument("--ramp", type=int, default=8, help="steps")
    parser.add_argument("--hold-at", type=int, default=0, help="from this step on go slowly, until others have come")
    parser.add_argument("--step-s", type=float, default=0.01, help="least time of a step")
    options = parser.parse_args(words)

    images, labels = map(torch.from_numpy, digits())
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    train, test = order[HELD_OUT:], order[:HELD_OUT]

    edl.init()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    plain = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = edl.Optimizer(plain, model=model)
    edl.scale_rate(options.rate, base_batch=options.base_batch, steps=options.ramp)
    shards = edl.elastic_shard_generator(len(train), epochs=options.epochs, shuffle=True, seed=options.seed)
    losses: list[tuple[int, int, float]] = []  # step, workers, loss of all training samples before it
    for ids in shards.batches(options.batch):
        began = time.perf_counter()
        optimizer.zero_grad()
        chosen = train[torch.from_numpy(ids)]
        torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        if edl.rank() == 0:
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(model(images[train]), labels[train]).item()
            losses.append((edl.step(), edl.size(), loss))
        held = edl.size() == 1 and 0 < options.hold_at <= edl.step()
        time.sleep(max(0.0, (HELD_S if held else options.step_s) - (time.perf_counter() - began)))
        optimizer.step()
        edl.notify_batch_end()
    if edl.rank() == 0:
        with torch.no_grad():
            accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        (options.out / "result.json").write_text(json.dumps({"accuracy": accuracy, "losses": losses}))


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("policies", "ramp"), default=("policies", "ramp"))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=tuple(POLICIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = {"policies": policies, "ramp": ramp}
    found = {name: parts[name](options.seeds, options.policies) for name in options.parts}
    print(json.dumps(found)) if options.json else show(found)
    return 0 if is_sound(found) else 1


if __name__ == "__main__":
    sys.exit(main())
