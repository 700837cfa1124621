"""What a step takes under `edl run`, and on stock Horovod under `horovodrun`: jobs of two workers in turn.

    python -m benchmarks.beside_stock [--frameworks torch tensorflow] [--rounds 6] [--steps 1000] [--batch 64]

`benchmarks.overhead` compares two optimizers in one process, where noise falls on both; so does what edl does to the
whole process, and to its Horovod: that shows here alone. The job of each kind that comes first changes from round to
round. Printed: the median step of each kind, over both ranks; the ratio, as the mean of the rounds' with its standard
error; the rounds' ratios; and the same of the processor time of the trainers, all threads. Exit code 1 where the ratio
is more than two standard errors above 1.05: a machine that others use differs from itself by that from job to job.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

NOT_DONE = 1.05
LAUNCHERS = {"stock": ["horovodrun"], "edl": ["edl", "run"]}


def job(kind: str, framework: str, options: argparse.Namespace) -> tuple[float, float]:
    """The median step of both ranks in ms, and the processor time of one in ms."""
    with tempfile.TemporaryDirectory() as home:
        command, *more = LAUNCHERS[kind]
        worker = [sys.executable, "-m", "benchmarks.beside_stock_worker", kind, framework, "--out", home]
        done = subprocess.run(
            [
                *(str(Path(sys.executable).with_name(command)), *more, "-np", "2", *worker),
                *("--steps", str(options.steps), "--batch", str(options.batch)),
            ],
            env={**os.environ, "EDL_HOME": home, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        ranks = [json.loads(file.read_text()) for file in Path(home).glob("steps-*.json")]
    if len(ranks) < 2:
        raise SystemExit(f"the {framework} job ({kind}) failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    wall_s = np.median(np.concatenate([rank["wall_s"] for rank in ranks]))
    return 1000 * float(wall_s), 1000 * float(np.mean([rank["cpu_s"] for rank in ranks])) / options.steps


def measure(framework: str, options: argparse.Namespace) -> bool:
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in LAUNCHERS}
    for number in range(options.rounds):
        for kind in list(LAUNCHERS)[:: -1 if number % 2 else 1]:
            found[kind].append(job(kind, framework, options))
    stock, ours = (np.array(found[kind]) for kind in LAUNCHERS)
    ratios = ours / stock
    mean, error = ratios.mean(0), ratios.std(0, ddof=1) / len(ratios) ** 0.5
    print(
        f"{framework:<10}  stock {np.median(stock[:, 0]):.2f} ms  edl {np.median(ours[:, 0]):.2f} ms  "
        f"ratio {mean[0]:.3f} +- {error[0]:.3f} ({' '.join(f'{ratio:.3f}' for ratio in ratios[:, 0])})  "
        f"processor time {np.median(stock[:, 1]):.2f} and {np.median(ours[:, 1]):.2f} ms a step, "
        f"ratio {mean[1]:.3f} +- {error[1]:.3f}",
        flush=True,
    )
    return bool(mean[0] - 2 * error[0] <= NOT_DONE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--rounds", type=int, default=6, help="at least 2")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds 1: a standard error takes two; give at least 2")
    good = [measure(framework, options) for framework in options.frameworks]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
