"""What edl costs in steady state: the same model on plain Horovod and under edl, paired in one run with 2 workers.

    python -m benchmarks.overhead [--rounds 40] [--steps 50] [--json]

Blocks of steps on `hvd.DistributedOptimizer` (torch) or `hvd.DistributedGradientTape` (TensorFlow) take turns with
blocks under edl, in the same two processes and the same ring, so that both see the same noise. edl's daemons are
stopped during the plain blocks. Printed: the medians, and the median over rounds of the ratio of medians (goal: 1.003
at most; above 1.01 is not done). Exit code 1 beyond 1.01, or when `notify_batch_end()` takes more than 5 us.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOT_DONE, NOTIFY_US = 1.01, 5.0


def measure(framework: str, options: argparse.Namespace) -> dict[str, Any]:
    worker = [sys.executable, "-m", "benchmarks.overhead_worker", framework]
    sizes = ["--rounds", str(options.rounds), "--steps", str(options.steps), "--batch", str(options.batch)]
    with tempfile.TemporaryDirectory() as home:
        job = subprocess.run(
            [str(Path(sys.executable).with_name("edl")), "run", "-np", "2", *worker, *sizes],
            env={**os.environ, "EDL_HOME": home, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
    for line in job.stdout.splitlines():
        if "RESULT " in line:
            result: dict[str, Any] = json.loads(line.partition("RESULT ")[2])
            return result
    raise SystemExit(f"the {framework} job gave no result:\n{job.stdout[-3000:]}{job.stderr[-3000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="one JSON object per framework")
    options = parser.parse_args()
    done = True
    for framework in options.frameworks:
        result = measure(framework, options)
        done = done and result["median_round_ratio"] <= NOT_DONE and result["notify_us"] <= NOTIFY_US
        if options.json:
            print(json.dumps(result))
            continue
        print(
            f"{framework:<10}  plain {result['plain_ms']:.3f} ms  edl {result['edl_ms']:.3f} ms  "
            f"ratio {result['median_round_ratio']:.4f} "
            f"(median of {result['rounds']} rounds of {result['steps']} steps, "
            f"quartiles {_quartiles(result['round_ratios'])})  "
            f"notify_batch_end {result['notify_us']:.2f} us median, {result['notify_p99_us']:.1f} us p99"
        )
    return 0 if done else 1


def _quartiles(ratios: list[float]) -> str:
    return f"{ratios[len(ratios) // 4]:.4f}..{ratios[-1 - len(ratios) // 4]:.4f}"


if __name__ == "__main__":
    sys.exit(main())
