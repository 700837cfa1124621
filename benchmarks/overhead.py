"""What edl costs in steady state: the same model on plain Horovod and under edl, paired in one run with 2 workers.

    python -m benchmarks.overhead [--frameworks torch tensorflow] [--rounds 6] [--steps 400] [--batch 64] [--control]
        [--json]

Each step on `hvd.DistributedOptimizer` (torch) or `hvd.DistributedGradientTape` (TensorFlow) is followed by one under
edl, in the same two processes and the same ring: noise of the machine that lasts longer than a step falls on both.
edl's steps include taking the samples from the generator and `notify_batch_end()`. Both kinds of steps update one
model, in the same memory: the same model elsewhere differs from itself by one or two percent. There are several rounds,
each with processes of its own. Printed for both ranks together: the ratio of the median times of 40 steps of each kind,
as the mean of all rounds with its standard error; the same of the processor time that the two processes took, all
threads, which other work on the machine blurs less; the call of `notify_batch_end()` (in place, with the caches as a
step leaves them; an empty call there beside it); what comparing the workers' states takes at the end of each 100th of
them, and its share of those steps; and the share of a core that each daemon takes, which a host without a core to spare
has to pay too. Goals: a ratio of 1.003, 5 us for the call; exit code 1 beyond 1.01 or 5 us. `--control` has plain
Horovod in the place of edl, so it finds what this way of measuring makes of equal steps.
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

import numpy as np

from benchmarks.overhead_worker import BLOCK, EVERY

NOT_DONE, NOTIFY_US = 1.01, 5.0


def measure(framework: str, options: argparse.Namespace) -> dict[str, Any]:
    return summary(framework, [one_round(framework, options) for _ in range(options.rounds)])


def one_round(framework: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the two ranks have measured."""
    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "result"
        worker = [sys.executable, "-m", "benchmarks.overhead_worker", framework, "--out", str(out)]
        job = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("edl")), "run", "-np", "2", *worker),
                *("--steps", str(options.steps), "--batch", str(options.batch)),
                *(["--control"] if options.control else []),
            ],
            env={**os.environ, "EDL_HOME": home, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        ranks = [
            json.loads(out.with_suffix(f".{rank}").read_text())
            for rank in (0, 1)
            if out.with_suffix(f".{rank}").exists()
        ]
    if len(ranks) < 2:
        raise SystemExit(f"the {framework} job failed:\n{job.stdout[-3000:]}{job.stderr[-3000:]}")
    return ranks


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
    return {
        "plain_ms": 1000 * float(np.median(plain)),
        "edl_ms": 1000 * float(np.median(ours)),
        "ratios": ratios.tolist(),
        "ratio": float(ratios.mean()),
        "standard_error": float(np.std(ratios, ddof=1) / len(ratios) ** 0.5) if len(ratios) > 1 else float("nan"),
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400, help="of each kind, in each round")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--control", action="store_true", help="plain Horovod against plain Horovod")
    parser.add_argument("--json", action="store_true", help="one JSON object per framework")
    options = parser.parse_args()
    if options.steps % BLOCK:
        parser.error(f"--steps {options.steps}: {BLOCK} of each kind are looked at together; give a multiple of that")
    done = True
    for framework in options.frameworks:
        result = measure(framework, options)
        done = done and result["ratio"] <= NOT_DONE and result["notify_us"] <= NOTIFY_US
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        print(shown(result), flush=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
