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
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
EDL = str(Path(sys.executable).with_name("edl"))


def run(policy: str, batch: int, seed: int, workers: int, sizes: tuple[int, ...], *more: str) -> dict[str, Any]:
    """One training; `sizes` are asked for one after the other."""
    with tempfile.TemporaryDirectory(prefix="edl-convergence-") as name:
        folder = Path(name)
        environ = {**os.environ, "EDL_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
        worker = [
            sys.executable,
            "-m",
            "benchmarks.convergence_worker",
            name,
            "--seed",
            str(seed),
            "--batch",
            str(batch),
        ]
        command = [EDL, "run", "-np", str(workers), "--job", "c", "--batch-policy", policy, *worker, *more]
        with (folder / "output.log").open("wb") as log:
            job = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            done = [_changed(environ, job, size) for size in sizes]
            job.wait(PATIENCE_S)
        finally:
            job.terminate()
            job.wait(60)
        if job.returncode or not all(done):
            raise SystemExit(f"{policy}, seed {seed}: {done}\n{(folder / 'output.log').read_text()[-3000:]}")
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        found["recut"] = _recut_after(environ)
        return found


def _recut_after(environ: dict[str, str]) -> int:
    """The step after which all workers had their share; 0 if they had it from the beginning."""
    told = subprocess.run([EDL, "events", "c", "--json"], env=environ, capture_output=True, text=True, check=True)
    events = map(json.loads, told.stdout.splitlines())
    return max((event["after_step"] for event in events if event["kind"] == "recut"), default=0)


def _changed(environ: dict[str, str], job: subprocess.Popen[bytes], size: int) -> bool:
    """Ask for another size until the job has it; it may not have begun yet. False when it ends before."""
    until = time.monotonic() + PATIENCE_S
    while job.poll() is None and time.monotonic() < until:
        asked = subprocess.run([EDL, "scale", "c", str(size), "--wait"], env=environ, capture_output=True, check=False)
        if asked.returncode == 0:
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
            rate = (
                "--rate",
                "linear",
                "--base-batch",
                "16",
                "--lr",
                "0.02",
                "--hold-at",
                HOLD_AT,
                "--ramp",
                str(steps),
            )
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


def main() -> int:
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
